package main

// The commands of standard input and what each of them does.

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// command is one line of standard input. Pods, containers and resources are messages of NRI in protobuf's JSON form;
// where a pod or container is already in the book its id (a JSON string) will do.
type command struct {
	Op        string          `json:"op"`
	Tag       string          `json:"tag,omitempty"`   // echoed in the reply
	Async     bool            `json:"async,omitempty"` // the next command needn't wait for this one
	Brief     bool            `json:"brief,omitempty"` // updates are counted, not listed, in the reply
	Pod       json.RawMessage `json:"pod,omitempty"`
	Container json.RawMessage `json:"container,omitempty"`
	Resources json.RawMessage `json:"resources,omitempty"` // LinuxResources that UpdateContainer asks for

	Hold         bool `json:"hold,omitempty"`          // CreateContainer: answered, but not stored before its PostCreateContainer
	MessageBytes int  `json:"message_bytes,omitempty"` // pad the container until the ttrpc message has this length

	MS         int               `json:"ms,omitempty"`         // restart: time between stop and start
	IDs        []string          `json:"ids,omitempty"`        // break: containers whose updates fail from now on
	MakeUp     *madeUp           `json:"make_up,omitempty"`    // load: made-up pods and containers
	Pods       []json.RawMessage `json:"pods,omitempty"`       // load
	Containers []json.RawMessage `json:"containers,omitempty"` // load
	Cycle      string            `json:"cycle,omitempty"`      // bench: shared or restart
	N          int               `json:"n,omitempty"`          // bench: how many cycles
}

// reply is the line that answers a command.
type reply struct {
	Op        string            `json:"op"`
	Tag       string            `json:"tag,omitempty"`
	T         int64             `json:"t"`          // Unix time in nanoseconds
	ElapsedNS int64             `json:"elapsed_ns"` // events: in the library and the plugins only
	Error     string            `json:"error,omitempty"`
	Adjust    json.RawMessage   `json:"adjust,omitempty"`
	NUpdates  int               `json:"n_updates"`
	Updates   []json.RawMessage `json:"updates,omitempty"`
	Unknown   []string          `json:"unknown,omitempty"` // updated, but not in the book: silently skipped by runtimes
	Failed    []string          `json:"failed,omitempty"`  // updates that could not be applied
	Result    any               `json:"result,omitempty"`
}

// do carries out one command.
func (r *runtime) do(c command) reply {
	rep := reply{Op: c.Op, Tag: c.Tag}
	begin := time.Now()
	var err error
	switch c.Op {
	case "start":
		err = r.start()
	case "stop":
		err = r.stop()
	case "restart":
		if err = r.stop(); err == nil {
			time.Sleep(time.Duration(c.MS) * time.Millisecond)
			err = r.start()
		}
	case "load":
		err = r.book.load(c)
	case "break":
		r.book.breakUpdates(c.IDs)
	case "state":
		rep.Result = r.book.rows()
	case "bench":
		rep.Result, err = r.bench(c)
	default:
		err = r.event(c, &rep)
	}
	if rep.ElapsedNS == 0 {
		rep.ElapsedNS = time.Since(begin).Nanoseconds()
	}
	rep.T = time.Now().UnixNano()
	if err != nil {
		rep.Error = err.Error()
	}
	return rep
}

// event relays a life-cycle event to the plugins and does to the book what a runtime does to its own.
func (r *runtime) event(c command, rep *reply) error {
	subject, err := r.subjects(c)
	if err != nil {
		return err
	}
	nri, end, err := r.beginEvent()
	if err != nil {
		return err
	}
	defer end()
	resp, elapsed, err := relay(nri, c.Op, subject.fields())
	rep.ElapsedNS = elapsed.Nanoseconds()
	if err != nil {
		if !failsTheOperation(c.Op) {
			r.book.record(c, subject, nil)
		}
		return err
	}
	adjust, updates := answers(resp)
	rep.show(adjust, updates, c.Brief)
	// UpdateContainer's own change comes before what plugins made of it; a new container after its updates (shared
	// containers are shrunk first).
	if c.Op == "UpdateContainer" {
		r.book.record(c, subject, nil)
	}
	done := r.book.apply(updates)
	rep.Unknown, rep.Failed = done.unknown, done.failed
	if r.strict && len(done.fatal) > 0 {
		return fmt.Errorf("updates of %q failed", done.fatal)
	}
	if c.Op != "UpdateContainer" {
		r.book.record(c, subject, adjust)
	}
	return nil
}

// answers takes a response apart. There is a type for each event, and some have no answer to give.
func answers(resp any) (adjust *api.ContainerAdjustment, updates []*api.ContainerUpdate) {
	if a, ok := resp.(interface {
		GetAdjust() *api.ContainerAdjustment
	}); ok {
		adjust = a.GetAdjust()
	}
	if u, ok := resp.(interface{ GetUpdate() []*api.ContainerUpdate }); ok {
		updates = u.GetUpdate()
	}
	return adjust, updates
}

func (rep *reply) show(adjust *api.ContainerAdjustment, updates []*api.ContainerUpdate, brief bool) {
	if adjust != nil {
		rep.Adjust = toJSON([]*api.ContainerAdjustment{adjust})[0]
	}
	rep.NUpdates = len(updates)
	if !brief {
		rep.Updates = toJSON(updates)
	}
}

// failsTheOperation is whether a plugin's error makes a runtime give up what the event belongs to. It logs the others.
func failsTheOperation(op string) bool {
	switch op {
	case "RunPodSandbox", "UpdatePodSandbox", "CreateContainer", "StartContainer", "UpdateContainer":
		return true
	}
	return false
}

// subject is what an event is about. Its messages are copies: a request must not change the book.
type subject struct {
	pod       *api.PodSandbox
	container *api.Container
	resources *api.LinuxResources
}

// fields are those of all the requests that the library's methods take, by their Go names.
func (s subject) fields() map[string]any {
	fields := map[string]any{"Pod": s.pod}
	if s.container != nil {
		fields["Container"] = s.container
	}
	if s.resources != nil {
		fields["LinuxResources"] = s.resources
	}
	return fields
}

// subjects finds or reads the pod and container of a command.
func (r *runtime) subjects(c command) (subject, error) {
	s := subject{pod: &api.PodSandbox{}}
	if strings.Contains(c.Op, "Container") {
		s.container = &api.Container{}
		if err := find(c.Container, s.container, r.book.container); err != nil {
			return s, fmt.Errorf("container: %w", err)
		}
	}
	podRef := c.Pod
	if len(podRef) == 0 && s.container != nil {
		podRef, _ = json.Marshal(s.container.PodSandboxId)
	}
	if err := find(podRef, s.pod, r.book.pod); err != nil {
		return s, fmt.Errorf("pod: %w", err)
	}
	if s.container != nil && s.container.PodSandboxId == "" {
		s.container.PodSandboxId = s.pod.Id
	}
	if len(c.Resources) > 0 || c.Op == "UpdateContainer" {
		s.resources = &api.LinuxResources{}
		if len(c.Resources) > 0 {
			if err := protojson.Unmarshal(c.Resources, s.resources); err != nil {
				return s, fmt.Errorf("resources: %w", err)
			}
		}
	}
	if c.MessageBytes > 0 {
		return s, padMessage(c.Op, s, c.MessageBytes)
	}
	return s, nil
}

func find[M proto.Message](ref json.RawMessage, into M, known func(string) (M, bool)) error {
	if len(ref) == 0 {
		return fmt.Errorf("none given")
	}
	var id string
	if json.Unmarshal(ref, &id) != nil {
		return protojson.Unmarshal(ref, into)
	}
	have, ok := known(id)
	if !ok {
		return fmt.Errorf("no such id %q", id)
	}
	proto.Merge(into, have)
	return nil
}

func toJSON[M proto.Message](messages []M) []json.RawMessage {
	var out []json.RawMessage
	for _, m := range messages {
		raw, err := protojson.Marshal(m)
		if err != nil { // text that is not UTF-8
			raw, _ = json.Marshal("unprintable: " + err.Error())
		}
		out = append(out, raw)
	}
	return out
}
