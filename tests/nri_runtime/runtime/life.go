package main

// The life of the runtime's side: starting, stopping, Synchronize, and what plugins do by themselves.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

// runtime is what a container runtime has: the library, a book, and one lock over all its NRI activity.
type runtime struct {
	out           *output
	name, version string
	socket        string
	strict        bool
	options       []adaptation.Option
	book          book

	up  sync.Mutex             // guards nri
	nri *adaptation.Adaptation // nil while the runtime is down

	// events is held during an event, a Synchronize and an unsolicited update, as containerd does. With NRI before
	// 0.12.1 the library takes its own lock around unsolicited updates, and the two can deadlock here as they do there.
	events sync.Mutex

	log pluginLog
}

func newRuntime(out *output) *runtime {
	r := &runtime{out: out}
	r.log.changed = sync.NewCond(&r.log.mu)
	return r
}

// libraries are the versions that this program is built with.
func libraries() map[string]string {
	versions := map[string]string{}
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if name, ok := strings.CutPrefix(dep.Path, "github.com/containerd/"); ok {
			versions[name] = dep.Version
		}
	}
	return versions
}

func (r *runtime) start() error {
	r.up.Lock()
	defer r.up.Unlock()
	if r.nri != nil {
		return errors.New("the runtime is up")
	}
	nri, err := adaptation.New(r.name, r.version, r.synchronize, r.unsolicited, r.options...)
	if err != nil {
		return err
	}
	r.log.starting()
	if err := nri.Start(); err != nil {
		return err
	}
	for _, name := range r.log.started() { // NRI before 0.7 has no Synchronize for those
		r.pluginReady(name, false)
	}
	r.nri = nri
	r.out.event("listening", nil)
	return nil
}

// stop goes down as a runtime does whose process ends: no socket, and no connection left.
func (r *runtime) stop() error {
	r.up.Lock()
	defer r.up.Unlock()
	if r.nri == nil {
		return errors.New("the runtime is down")
	}
	_ = os.Remove(r.socket)            // nobody comes back before the next start
	if err := r.hangUp(); err != nil { // so that Stop has no plugin to wait for
		return err
	}
	r.nri.Stop()
	r.nri = nil
	err := r.hangUp() // whoever came in between
	r.log.waitForNone(time.Second)
	r.out.event("down", nil)
	return err
}

// hangUp ends the connections of external plugins, which the library leaves open when it stops. They are this
// process's sockets that have the NRI socket's name.
func (r *runtime) hangUp() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, err := syscall.Getsockname(fd)
		if unix, ok := name.(*syscall.SockaddrUnix); err == nil && ok && unix.Name == r.socket {
			_ = syscall.Shutdown(fd, syscall.SHUT_RDWR) // it may have ended by itself
		}
	}
	return nil
}

// synchronize gives a plugin that has registered the state of the book.
func (r *runtime) synchronize(ctx context.Context, give adaptation.SyncCB) error {
	if r.log.nobodyToSynchronize() { // since NRI 0.7 the library starts with this, for the plugins that it launched
		return nil
	}
	r.events.Lock()
	defer r.events.Unlock()
	pods, containers := r.book.live()
	begin := time.Now()
	updates, err := give(ctx, pods, containers)
	fields := map[string]any{
		"pods": len(pods), "containers": len(containers), "elapsed_ns": time.Since(begin).Nanoseconds(),
	}
	fields["plugins"], fields["messages"] = r.log.synchronized()
	done := r.takeUpdates("synchronized", updates, fields, err)
	if err == nil && r.strict && len(done.fatal) > 0 {
		return fmt.Errorf("updates of %q failed", done.fatal)
	}
	return err
}

// unsolicited takes updates that a plugin asked for by itself, and gives back those that failed.
func (r *runtime) unsolicited(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	r.events.Lock()
	defer r.events.Unlock()
	done := r.takeUpdates("unsolicited", updates, map[string]any{}, nil)
	if len(done.fatal) == 0 {
		return nil, nil
	}
	var failed []*api.ContainerUpdate
	for _, u := range updates {
		for _, id := range done.fatal {
			if u.GetContainerId() == id {
				failed = append(failed, u)
			}
		}
	}
	return failed, fmt.Errorf("%d of %d updates failed", len(failed), len(updates))
}

// takeUpdates applies updates that do not answer a command, and reports them as an event.
func (r *runtime) takeUpdates(event string, updates []*api.ContainerUpdate, fields map[string]any, err error) outcome {
	done := r.book.apply(updates)
	fields["n_updates"], fields["updates"] = len(updates), toJSON(updates)
	fields["unknown"], fields["failed"] = done.unknown, done.failed
	if err != nil {
		fields["error"] = err.Error()
	}
	r.out.event(event, fields)
	return done
}

// beginEvent keeps Synchronize and other events away until the function that it returns is called, as runtimes do
// around an event and the updates that it brings.
func (r *runtime) beginEvent() (nri *adaptation.Adaptation, end func(), err error) {
	r.up.Lock()
	nri = r.nri
	r.up.Unlock()
	if nri == nil {
		return nil, nil, errors.New("the runtime is down")
	}
	unblock := func() {}
	if block := reflect.ValueOf(nri).MethodByName("BlockPluginSync"); block.IsValid() { // since NRI 0.8
		blocked := block.Call(nil)[0]
		unblock = func() { blocked.MethodByName("Unblock").Call(nil) }
	}
	r.events.Lock() // second: Synchronize takes the two in this order
	return nri, func() { r.events.Unlock(); unblock() }, nil
}

// relay calls the library's method of that name. Reflection bridges the versions, in which the same methods take
// different requests (StateChangeEvent, later one type for each event) or are missing.
func relay(nri *adaptation.Adaptation, method string, fields map[string]any) (any, time.Duration, error) {
	m := reflect.ValueOf(nri).MethodByName(method)
	if !m.IsValid() || m.Type().NumIn() != 2 {
		return nil, 0, fmt.Errorf("this version of NRI has no event %q", method)
	}
	request := reflect.New(m.Type().In(1).Elem())
	for name, v := range fields {
		if f := request.Elem().FieldByName(name); f.IsValid() {
			f.Set(reflect.ValueOf(v))
		}
	}
	arguments := []reflect.Value{reflect.ValueOf(context.Background()), request}
	begin := time.Now()
	results := m.Call(arguments)
	elapsed := time.Since(begin)
	err, _ := results[len(results)-1].Interface().(error)
	if len(results) < 2 || results[0].IsNil() {
		return nil, elapsed, err
	}
	return results[0].Interface(), elapsed, err
}
