# first: before anything else it copies its own /proc/self/status to standard output, where the CPUs that it was allowed
# when its first instruction ran can be read; then it runs until SIGTERM.
        .include "wait.s"
        .globl  _start
_start: mov     $2, %eax                # open(path, O_RDONLY)
        lea     path(%rip), %rdi
        xor     %esi, %esi
        syscall
        mov     %eax, %edi              # read(file, buffer, size)
        xor     %eax, %eax
        lea     buffer(%rip), %rsi
        mov     $size, %edx
        syscall
        mov     %eax, %edx              # write(1, buffer, what was read)
        mov     $1, %eax
        mov     $1, %edi
        syscall
        block_sigterm
        exit_at_sigterm
path:   .asciz  "/proc/self/status"
        .equ    size, 4096
        .lcomm  buffer, size
