package main

// The policy: a claim's CPUs leave the pool that all other containers share. It believes the environment, has no files
// and no errors: what is left is the cost of the library.

import (
	"context"
	"strings"

	"github.com/containerd/nri/pkg/api"
)

type claim struct {
	cpus       cpuset
	text       string
	containers int // that exist, running or not
}

type policy struct {
	all    cpuset
	pool   string
	claims map[string]*claim
	shared map[string]bool
	claimy map[string]*claim // containers with a claim
}

func newPolicy(all cpuset) *policy {
	p := &policy{all: all}
	p.reset()
	return p
}

func (p *policy) reset() {
	p.claims, p.shared, p.claimy = map[string]*claim{}, map[string]bool{}, map[string]*claim{}
	p.setPool()
}

func (p *policy) setPool() {
	pool := p.all
	for _, c := range p.claims {
		pool = pool.without(c.cpus)
	}
	p.pool = pool.String()
}

// add takes a container in, and tells its claim, if it has one, and whether that is new.
func (p *policy) add(c *api.Container) (have *claim, fresh bool) {
	for _, e := range c.Env {
		v, ok := strings.CutPrefix(e, "DRA_CPUSET_")
		if !ok {
			continue
		}
		uid, text, _ := strings.Cut(v, "=")
		if have = p.claims[uid]; have == nil {
			cpus, err := parse(text)
			if err != nil {
				continue
			}
			have, fresh = &claim{cpus: cpus, text: text}, true
			p.claims[uid] = have
			p.setPool()
		}
		have.containers++
		p.claimy[c.Id] = have
		return have, fresh
	}
	p.shared[c.Id] = true
	return nil, false
}

func (p *policy) remove(id string) {
	delete(p.shared, id)
	have := p.claimy[id]
	if have == nil {
		return
	}
	delete(p.claimy, id)
	if have.containers--; have.containers > 0 {
		return
	}
	for uid, c := range p.claims {
		if c == have {
			delete(p.claims, uid)
		}
	}
	p.setPool() // what runs learns of it with the next claim
}

func update(id, cpus string) *api.ContainerUpdate {
	u := &api.ContainerUpdate{ContainerId: id, IgnoreFailure: true}
	u.SetLinuxCPUSetCPUs(cpus)
	return u
}

func (p *policy) updates() []*api.ContainerUpdate {
	updates := make([]*api.ContainerUpdate, 0, len(p.shared))
	for id := range p.shared {
		updates = append(updates, update(id, p.pool))
	}
	return updates
}

// Synchronize replaces all that is known.
func (p *policy) Synchronize(_ context.Context, _ []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.reset()
	for _, c := range containers {
		p.add(c)
	}
	return p.updates(), nil
}

// CreateContainer gives a container its claim's CPUs, or the pool.
func (p *policy) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a := &api.ContainerAdjustment{}
	have, fresh := p.add(c)
	switch {
	case have == nil:
		a.SetLinuxCPUSetCPUs(p.pool)
		return a, nil, nil
	case fresh:
		a.SetLinuxCPUSetCPUs(have.text)
		return a, p.updates(), nil
	default:
		a.SetLinuxCPUSetCPUs(have.text)
		return a, nil, nil
	}
}

// StopContainer has nothing to change; the runtime waits for its answer all the same.
func (p *policy) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	delete(p.shared, c.Id)
	return nil, nil
}

// RemoveContainer forgets a container, and a claim with its last.
func (p *policy) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.remove(c.Id)
	return nil
}

// The other events that nri-cpu subscribes to, so that both pay for the same ones.

// PostCreateContainer does nothing.
func (p *policy) PostCreateContainer(context.Context, *api.PodSandbox, *api.Container) error {
	return nil
}

// UpdateContainer does nothing.
func (p *policy) UpdateContainer(context.Context, *api.PodSandbox, *api.Container, *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

// StopPodSandbox does nothing.
func (p *policy) StopPodSandbox(context.Context, *api.PodSandbox) error { return nil }

// RemovePodSandbox does nothing.
func (p *policy) RemovePodSandbox(context.Context, *api.PodSandbox) error { return nil }
