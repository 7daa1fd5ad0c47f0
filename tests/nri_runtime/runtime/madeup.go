package main

// Pods and containers made up in the likeness of a kubelet's, in any number and size.

import (
	"fmt"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
)

// madeUp says how many, and how large.
type madeUp struct {
	Pods       int `json:"pods"`
	Containers int `json:"containers"` // in each pod
	Padding    int `json:"padding"`    // bytes added to each container, as an annotation
	IDBytes    int `json:"id_bytes"`   // shortest id of a container: what the plugin's replies grow with
}

// makeUp adds running pods and containers to the book.
func (b *book) makeUp(m madeUp) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range m.Pods {
		pod := madeUpPod(fmt.Sprintf("made-up-%d", p))
		b.pods.put(pod.Id, pod)
		for c := range m.Containers {
			name := fmt.Sprintf("c%d", c)
			id := fmt.Sprintf("%s-%s", pod.Id, name)
			id += strings.Repeat("x", max(0, m.IDBytes-len(id)))
			ctr := madeUpContainer(pod.Id, name, id, nil)
			ctr.State = api.ContainerState_CONTAINER_RUNNING
			if m.Padding > 0 {
				ctr.Annotations = map[string]string{paddingKey: strings.Repeat("x", m.Padding)}
			}
			b.containers.put(id, ctr)
		}
	}
}

func madeUpPod(id string) *api.PodSandbox {
	return &api.PodSandbox{Id: id, Name: id, Uid: "uid-" + id, Namespace: "made-up"}
}

// madeUpContainer has about as much environment and labels as one that a kubelet starts.
func madeUpContainer(pod, name, id string, env []string) *api.Container {
	c := &api.Container{
		Id: id, PodSandboxId: pod, Name: name,
		Labels: map[string]string{
			"io.kubernetes.container.name": name, "io.kubernetes.pod.name": pod,
			"io.kubernetes.pod.namespace": "made-up", "io.kubernetes.pod.uid": "uid-" + pod,
		},
		Args: []string{"/pause"},
		Env:  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=" + pod},
		Linux: &api.LinuxContainer{
			CgroupsPath: "kubepods-burstable-pod" + pod + ".slice:cri-containerd:" + id,
			Resources:   &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(102))}},
		},
	}
	for i := range 12 { // service links
		c.Env = append(c.Env, fmt.Sprintf("SERVICE_%d_PORT_443_TCP_ADDR=10.96.0.%d", i, i))
	}
	c.Env = append(c.Env, env...)
	return c
}

const paddingKey = "padding"

// padMessage pads the container until the ttrpc message of a request that every version has has exactly that length.
func padMessage(op string, s subject, length int) error {
	if s.container == nil {
		return fmt.Errorf("only messages with a container can be padded")
	}
	// Empty parts that the library adds to what it is given. They count.
	proto.Merge(s.container, &api.Container{
		Annotations: map[string]string{paddingKey: ""}, Hooks: &api.Hooks{},
		Linux: &api.LinuxContainer{Resources: emptyResources()},
	})
	if s.resources != nil {
		proto.Merge(s.resources, emptyResources())
	}
	padding := length
	for range 8 { // the lengths of lengths change with it
		s.container.Annotations[paddingKey] = strings.Repeat("x", max(0, padding))
		have, err := messageBytes(op, s)
		if err != nil {
			return err
		}
		if have == length {
			return nil
		}
		padding += length - have
	}
	return fmt.Errorf("no container makes a message of %d bytes", length)
}

func emptyResources() *api.LinuxResources {
	return &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{}}
}

// messageBytes is the length of the data of the ttrpc frame that carries the request.
func messageBytes(op string, s subject) (int, error) {
	var request proto.Message
	switch op {
	case "CreateContainer":
		request = &api.CreateContainerRequest{Pod: s.pod, Container: s.container}
	case "UpdateContainer":
		request = &api.UpdateContainerRequest{Pod: s.pod, Container: s.container, LinuxResources: s.resources}
	case "StopContainer":
		request = &api.StopContainerRequest{Pod: s.pod, Container: s.container}
	default:
		return 0, fmt.Errorf("a message of %s can't be padded", op)
	}
	return proto.Size(&ttrpc.Request{
		Service: "nri.pkg.api.v1alpha1.Plugin", Method: op, Payload: make([]byte, proto.Size(request)),
		TimeoutNano: 1 << 30, // takes as many bytes as any time left from 0.27 s to 34 s
	}), nil
}
