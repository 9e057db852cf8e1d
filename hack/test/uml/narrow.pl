#!/usr/bin/perl
# Runs a command to which the kernel denies the XSAVE state of traced processes (PTRACE_GETREGSET of NT_X86_XSTATE is
# EINVAL), so that user-mode-linux keeps 512 bytes for each process, as on processors without XSAVE. It has no space for
# the state of a processor with AMX, requests it nonetheless, and dies of the reply. The cost: a process loses the high
# halves of its vector registers when it enters the guest's kernel.
#
# Usage: narrow.pl COMMAND [argument...]   on x86_64
use strict;
use warnings;

use constant { PRCTL => 157, SET_NO_NEW_PRIVS => 38, SET_SECCOMP => 22, FILTER => 2 };
use constant { LOAD => 0x20, IF => 0x15, ANSWER => 0x06, ALLOW => 0x7fff0000, EINVAL => 0x00050016 };
# [instruction, how many to skip on a match, how many otherwise, value]
my @filter = (
    [LOAD, 0, 0, 4], [IF, 0, 6, 0xc000003e],    # x86_64
    [LOAD, 0, 0, 0], [IF, 0, 4, 101],           # ptrace
    [LOAD, 0, 0, 16], [IF, 0, 2, 0x4204],       # PTRACE_GETREGSET
    [LOAD, 0, 0, 32], [IF, 1, 0, 0x202],        # NT_X86_XSTATE
    [ANSWER, 0, 0, ALLOW], [ANSWER, 0, 0, EINVAL],
);
my $filter = join '', map { pack 'SCCL', @$_ } @filter;
my $program = pack 'S x6 P', scalar @filter, $filter;
syscall(PRCTL, SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 or die "no_new_privs: $!\n";
syscall(PRCTL, SET_SECCOMP, FILTER, $program, 0, 0) == 0 or die "seccomp: $!\n";
exec @ARGV or die "$ARGV[0]: $!\n";
