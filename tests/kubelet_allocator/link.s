// Empty: with a file in assembly beside them the compiler takes the declarations of link.go, which have no bodies.
