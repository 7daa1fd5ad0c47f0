# wait: a process that ends at SIGTERM. It blocks it first: even the first process of a container, which signals without
# a handler do not reach, gets what it has blocked.
        .macro  block_sigterm
        mov     $14, %eax               # rt_sigprocmask(SIG_BLOCK, signals, NULL, 8)
        xor     %edi, %edi
        lea     signals(%rip), %rsi
        xor     %edx, %edx
        mov     $8, %r10d
        syscall
        .endm

        .macro  exit_at_sigterm
again\@: mov    $128, %eax              # rt_sigtimedwait(signals, NULL, NULL, 8)
        lea     signals(%rip), %rdi
        xor     %esi, %esi
        xor     %edx, %edx
        mov     $8, %r10d
        syscall
        test    %eax, %eax
        js      again\@                 # stopped and continued
        mov     $60, %eax               # exit(0)
        xor     %edi, %edi
        syscall
        .endm

        .section .rodata
signals: .quad  1 << 14                 # SIGTERM is 15
        .text
