// Command kubelet-allocator answers, one JSON object a line, which CPUs the kubelet's CPU manager would give to a
// container; README.md has the fields. It ends with its standard input.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/utils/cpuset"
)

const longestLine = 16 << 20 // a machine of 8192 CPUs is less than 1 MiB

type cpu struct {
	CPU    int `json:"cpu"`
	Core   int `json:"core"`
	Socket int `json:"socket"`
	NUMA   int `json:"numa"`
	Uncore int `json:"uncore"`
}

type request struct {
	Topology      []cpu  `json:"topology"`
	Free          string `json:"free"`
	Reserved      string `json:"reserved"`
	Count         int    `json:"count"`
	Strategy      string `json:"strategy"`
	FullPCPUsOnly bool   `json:"fullPCPUsOnly"`
	AlignL3       bool   `json:"alignL3"`
	AlignBySocket bool   `json:"alignBySocket"`
	Rounds        int    `json:"rounds"`
}

type answer struct {
	CPUs  *string `json:"cpus,omitempty"`
	Error string  `json:"error,omitempty"`
	NS    []int64 `json:"ns,omitempty"`
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, longestLine)
	out := json.NewEncoder(os.Stdout)
	topo := machine(nil)
	for in.Scan() {
		var r request
		var a answer
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			a.Error = fmt.Sprintf("not a request: %v", err)
		} else {
			if r.Topology != nil {
				topo = machine(r.Topology)
			}
			a = respond(topo, r)
		}
		if err := out.Encode(a); err != nil {
			fail(err)
		}
	}
	if err := in.Err(); err != nil {
		fail(err)
	}
}

func respond(topo *topology.CPUTopology, r request) answer {
	free, err := cpuset.Parse(r.Free)
	if err != nil {
		return answer{Error: fmt.Sprintf("free: %v", err)}
	}
	reserved, err := cpuset.Parse(r.Reserved)
	if err != nil {
		return answer{Error: fmt.Sprintf("reserved: %v", err)}
	}
	if topo.NumCPUs == 0 {
		return answer{Error: "no topology yet"}
	}
	var a answer
	var taken cpuset.CPUSet
	for range max(1, r.Rounds) {
		begin := time.Now()
		taken, err = takeSafely(topo, free, reserved, r)
		a.NS = append(a.NS, time.Since(begin).Nanoseconds())
	}
	if err != nil {
		a.Error = err.Error()
		return a
	}
	text := taken.String()
	a.CPUs = &text
	return a
}

// takeSafely makes an error of a panic, so that one request that breaks the allocator is an answer like others.
func takeSafely(topo *topology.CPUTopology, free, reserved cpuset.CPUSet, r request) (cpus cpuset.CPUSet, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = errors.New(fmt.Sprint("panic: ", problem))
		}
	}()
	return take(topo, free, reserved, r)
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "kubelet-allocator: %v\n", err)
	os.Exit(1)
}
