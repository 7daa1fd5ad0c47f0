package main

// What plugins do to runtimes that they had better not: for tests of the runtime's side.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// troubled is the policy with a special treatment of containers of certain names.
type troubled struct {
	*policy
	slow time.Duration
	stub stub.Stub
}

// Synchronize fails when there is a container "fail-sync", and is slow when there is one "slow-sync".
func (t *troubled) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	for _, c := range containers {
		switch c.Name {
		case "fail-sync":
			return nil, errors.New("Synchronize failed, as the container asked for")
		case "slow-sync":
			time.Sleep(t.slow)
		}
	}
	return t.policy.Synchronize(ctx, pods, containers)
}

// CreateContainer refuses "refused", is slow for "slow", updates "self" although it is only being created, updates one
// container two times for "twice", sends empty cpusets for "empty", and drops the flag ignore_failure for "strict".
func (t *troubled) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if c.Name == "refused" {
		return nil, nil, errors.New("refused, as its name asked for")
	}
	if c.Name == "slow" {
		time.Sleep(t.slow)
	}
	a, updates, err := t.policy.CreateContainer(ctx, pod, c)
	switch c.Name {
	case "self":
		updates = append(updates, update(c.Id, t.pool))
	case "twice":
		updates = []*api.ContainerUpdate{update("same", "0"), update("same", "1")}
		for _, u := range updates { // else the library drops the second, and all is well
			u.IgnoreFailure = false
		}
	case "empty":
		a.SetLinuxCPUSetCPUs("")
		for _, u := range updates {
			u.SetLinuxCPUSetCPUs("")
		}
	case "strict":
		for _, u := range updates {
			u.IgnoreFailure = false
		}
	}
	return a, updates, err
}

// StartContainer asks for updates unasked when "unasked" starts: one at a time, of all other containers and of one
// that does not exist.
func (t *troubled) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	if c.Name != "unasked" {
		return nil
	}
	updates := append(t.updates(), update("nowhere", "0"))
	go func() {
		for _, u := range updates {
			u.IgnoreFailure = false
			if failed, err := t.stub.UpdateContainers([]*api.ContainerUpdate{u}); err != nil {
				fmt.Fprintf(os.Stderr, "unasked update of %s: %v, %d in the list of failed ones\n", u.ContainerId, err, len(failed))
			}
		}
	}()
	return nil
}
