package main

// Cycles of container life without anything between them, for the bench.

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
)

// benchResult is what the cycles took, by event, and enough to see that the plugin did what was to be measured.
type benchResult struct {
	Latency map[string][]int64 `json:"latency"` // nanoseconds
	Updates map[string][]int   `json:"updates"` // fewest and most in one reply, by event
	CPUs    []string           `json:"cpus"`    // the first and the last container's
}

type benchRun struct {
	r      *runtime
	result benchResult
}

// bench runs c.N cycles. "shared": a pod's whole life with one container. "restart": the container c.Container, which
// is in the book and running, is stopped and made again with a new id, as a kubelet does.
func (r *runtime) bench(c command) (any, error) {
	run := &benchRun{r: r, result: benchResult{map[string][]int64{}, map[string][]int{}, nil}}
	cycle := run.shared
	switch c.Cycle {
	case "shared":
	case "restart":
		var id string
		if err := json.Unmarshal(c.Container, &id); err != nil {
			return nil, fmt.Errorf("container: %w", err)
		}
		cycle = func(i int) error { return run.restart(&id, i) }
	default:
		return nil, fmt.Errorf("no such cycle %q", c.Cycle)
	}
	for i := range c.N {
		if err := cycle(i); err != nil {
			return nil, err
		}
	}
	return run.result, nil
}

func (b *benchRun) shared(i int) error {
	pod, id := madeUpPod(fmt.Sprintf("bench-%d", i)), fmt.Sprintf("bench-container-%d", i)
	ctr := madeUpContainer(pod.Id, "app", id, nil)
	podJSON, err := protojson.Marshal(pod)
	if err != nil {
		return err
	}
	ctrJSON, err := protojson.Marshal(ctr)
	if err != nil {
		return err
	}
	return b.events(
		command{Op: "RunPodSandbox", Pod: podJSON},
		command{Op: "CreateContainer", Pod: podJSON, Container: ctrJSON},
		command{Op: "PostCreateContainer", Container: quoted(id)},
		command{Op: "StartContainer", Container: quoted(id)},
		command{Op: "StopContainer", Container: quoted(id)},
		command{Op: "RemoveContainer", Container: quoted(id)},
		command{Op: "StopPodSandbox", Pod: podJSON},
		command{Op: "RemovePodSandbox", Pod: podJSON},
	)
}

func (b *benchRun) restart(id *string, i int) error {
	old := *id
	ctr, ok := b.r.book.container(old)
	if !ok {
		return fmt.Errorf("no such container %q", old)
	}
	*id = fmt.Sprintf("restarted-%d-%s", i, ctr.PodSandboxId)
	ctr.Id, ctr.State = *id, 0
	ctr.Linux.Resources.Cpu.Cpus = ""
	ctrJSON, err := protojson.Marshal(ctr)
	if err != nil {
		return err
	}
	return b.events(
		command{Op: "StopContainer", Container: quoted(old)},
		command{Op: "CreateContainer", Container: ctrJSON},
		command{Op: "PostCreateContainer", Container: quoted(*id)},
		command{Op: "StartContainer", Container: quoted(*id)},
		command{Op: "RemoveContainer", Container: quoted(old)},
	)
}

func (b *benchRun) events(commands ...command) error {
	for _, c := range commands {
		c.Brief = true
		rep := b.r.do(c)
		if rep.Error != "" {
			return fmt.Errorf("%s: %s", c.Op, rep.Error)
		}
		b.result.Latency[c.Op] = append(b.result.Latency[c.Op], rep.ElapsedNS)
		if have, ok := b.result.Updates[c.Op]; ok {
			b.result.Updates[c.Op] = []int{min(have[0], rep.NUpdates), max(have[1], rep.NUpdates)}
		} else {
			b.result.Updates[c.Op] = []int{rep.NUpdates, rep.NUpdates}
		}
		if c.Op == "CreateContainer" {
			b.tookCPUs(rep.Adjust)
		}
	}
	return nil
}

func (b *benchRun) tookCPUs(adjust json.RawMessage) {
	var a struct {
		Linux struct {
			Resources struct{ CPU struct{ Cpus string } }
		}
	}
	_ = json.Unmarshal(adjust, &a) // no adjustment, no CPUs
	cpus := a.Linux.Resources.CPU.Cpus
	if len(b.result.CPUs) == 2 {
		b.result.CPUs[1] = cpus
	} else {
		b.result.CPUs = append(b.result.CPUs, cpus)
	}
}

func quoted(id string) json.RawMessage {
	raw, _ := json.Marshal(id) // a string always can be
	return raw
}
