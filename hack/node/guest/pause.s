# pause: the smallest process that runs until SIGTERM.
        .include "wait.s"
        .globl  _start
_start: block_sigterm
        exit_at_sigterm
