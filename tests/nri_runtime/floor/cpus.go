package main

// CPU sets as bits, in the kernel's list format.

import (
	"fmt"
	"strconv"
	"strings"
)

// The floor is for machines of up to this many CPUs.
const maxCPUs = 1024

type cpuset [maxCPUs / 64]uint64

func parse(text string) (set cpuset, err error) {
	for _, part := range strings.Split(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		low, err := strconv.Atoi(first)
		high := low
		if err == nil && isRange {
			high, err = strconv.Atoi(last)
		}
		if err != nil || low < 0 || high >= maxCPUs {
			return set, fmt.Errorf("%q is not a list of CPUs", text)
		}
		for cpu := low; cpu <= high; cpu++ {
			set[cpu/64] |= 1 << (cpu % 64)
		}
	}
	return set, nil
}

func (s cpuset) has(cpu int) bool { return cpu < maxCPUs && s[cpu/64]>>(cpu%64)&1 == 1 }

func (s cpuset) without(other cpuset) cpuset {
	for i := range s {
		s[i] &^= other[i]
	}
	return s
}

func (s cpuset) String() string {
	var parts []string
	for cpu := 0; cpu < maxCPUs; cpu++ {
		if !s.has(cpu) {
			continue
		}
		first := cpu
		for s.has(cpu + 1) {
			cpu++
		}
		if cpu > first {
			parts = append(parts, strconv.Itoa(first)+"-"+strconv.Itoa(cpu))
		} else {
			parts = append(parts, strconv.Itoa(first))
		}
	}
	return strings.Join(parts, ",")
}
