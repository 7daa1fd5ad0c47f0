package main

// The book of pods and containers, kept as a runtime keeps its own.

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// book is safe for concurrent use. What it gives out are copies.
type book struct {
	mu         sync.Mutex
	pods       table[*api.PodSandbox]
	containers table[*api.Container]
	held       map[string]*api.Container // created, as the plugin was told, but not yet stored
	broken     map[string]bool           // containers whose updates fail
}

// table is a map that remembers the order of insertion.
type table[V any] struct {
	ids  []string
	byID map[string]V
}

func (t *table[V]) put(id string, v V) {
	if t.byID == nil {
		t.byID = map[string]V{}
	}
	if _, ok := t.byID[id]; !ok {
		t.ids = append(t.ids, id)
	}
	t.byID[id] = v
}

func (t *table[V]) remove(id string) {
	delete(t.byID, id)
	if i := slices.Index(t.ids, id); i >= 0 {
		t.ids = slices.Delete(t.ids, i, i+1)
	}
}

func (b *book) pod(id string) (*api.PodSandbox, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.pods.byID[id]
	return proto.CloneOf(p), ok
}

// container also finds one that is held: the runtime knows it, though updates do not reach it.
func (b *book) container(id string) (*api.Container, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.containers.byID[id]
	if !ok {
		c, ok = b.held[id]
	}
	return proto.CloneOf(c), ok
}

// live gives what Synchronize carries: all pods, and the containers that are not stopped.
func (b *book) live() (pods []*api.PodSandbox, containers []*api.Container) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range b.pods.ids {
		pods = append(pods, proto.CloneOf(b.pods.byID[id]))
	}
	for _, id := range b.containers.ids {
		if c := b.containers.byID[id]; c.GetState() != api.ContainerState_CONTAINER_STOPPED {
			containers = append(containers, proto.CloneOf(c))
		}
	}
	return pods, containers
}

// load replaces the content.
func (b *book) load(c command) error {
	var fresh book
	for i, raw := range c.Pods {
		p := &api.PodSandbox{}
		if err := protojson.Unmarshal(raw, p); err != nil {
			return fmt.Errorf("pod %d: %w", i, err)
		}
		fresh.pods.put(p.Id, p)
	}
	for i, raw := range c.Containers {
		ctr := &api.Container{}
		if err := protojson.Unmarshal(raw, ctr); err != nil {
			return fmt.Errorf("container %d: %w", i, err)
		}
		fresh.containers.put(ctr.Id, ctr)
	}
	if c.MakeUp != nil {
		fresh.makeUp(*c.MakeUp)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods, b.containers, b.held = fresh.pods, fresh.containers, nil
	return nil
}

// record keeps the book after an event.
func (b *book) record(c command, s subject, adjust *api.ContainerAdjustment) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := s.container.GetId()
	stored := b.containers.byID[id]
	switch {
	case c.Op == "RunPodSandbox":
		b.pods.put(s.pod.Id, s.pod)
	case c.Op == "RemovePodSandbox":
		b.pods.remove(s.pod.Id)
	case c.Op == "CreateContainer":
		b.create(s.container, adjust, c.Hold)
	case c.Op == "PostCreateContainer" && b.held[id] != nil: // it is stored before this event, in every runtime
		b.containers.put(id, b.held[id])
		delete(b.held, id)
	case c.Op == "RemoveContainer":
		b.containers.remove(id)
		delete(b.held, id)
	case stored == nil:
	case c.Op == "StartContainer":
		stored.State = api.ContainerState_CONTAINER_RUNNING
	case c.Op == "StopContainer":
		stored.State = api.ContainerState_CONTAINER_STOPPED
	case c.Op == "UpdateContainer":
		setCPUs(stored, s.resources.GetCpu())
	}
}

func (b *book) create(c *api.Container, adjust *api.ContainerAdjustment, hold bool) {
	c.State = api.ContainerState_CONTAINER_CREATED
	for _, kv := range adjust.GetEnv() {
		c.Env = append(c.Env, kv.ToOCI())
	}
	setCPUs(c, adjust.GetLinux().GetResources().GetCpu())
	if !hold {
		b.containers.put(c.Id, c)
		return
	}
	if b.held == nil {
		b.held = map[string]*api.Container{}
	}
	b.held[c.Id] = c
}

// outcome is what became of a list of updates.
type outcome struct {
	unknown []string // not in the book
	failed  []string
	fatal   []string // failed, and the plugin did not say that this may be ignored
}

// apply writes the updates' CPU sets into the book, all of them: one failure does not stop the rest.
func (b *book) apply(updates []*api.ContainerUpdate) (done outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range updates {
		id := u.GetContainerId()
		c, ok := b.containers.byID[id]
		switch {
		case id == "": // the library's answer to an UpdateContainer that no plugin touched
		case !ok:
			done.unknown = append(done.unknown, id)
		case b.broken[id]:
			done.failed = append(done.failed, id)
			if !u.GetIgnoreFailure() {
				done.fatal = append(done.fatal, id)
			}
		default:
			setCPUs(c, u.GetLinux().GetResources().GetCpu())
		}
	}
	return done
}

// setCPUs takes over what is set: an empty string leaves the container's as it is, here as in every runtime.
func setCPUs(c *api.Container, cpu *api.LinuxCPU) {
	proto.Merge(c, &api.Container{Linux: &api.LinuxContainer{Resources: &api.LinuxResources{
		Cpu: &api.LinuxCPU{Cpus: cpu.GetCpus(), Mems: cpu.GetMems()},
	}}})
}

func (b *book) breakUpdates(ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = map[string]bool{}
	for _, id := range ids {
		b.broken[id] = true
	}
}

// row is a container as the command "state" shows it.
type row struct {
	ID    string `json:"id"`
	Pod   string `json:"pod"`
	Name  string `json:"name"`
	State string `json:"state"` // created, running, stopped, unknown
	CPUs  string `json:"cpus"`  // as the runtime was last told; empty: never
}

func (b *book) rows() []row {
	b.mu.Lock()
	defer b.mu.Unlock()
	rows := []row{}
	for _, id := range b.containers.ids {
		c := b.containers.byID[id]
		state := strings.ToLower(strings.TrimPrefix(c.State.String(), "CONTAINER_"))
		rows = append(rows, row{id, c.PodSandboxId, c.Name, state, c.GetLinux().GetResources().GetCpu().GetCpus()})
	}
	return rows
}
