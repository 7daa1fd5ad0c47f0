package main

// The library reports plugins that come and go only in its log, so the runtime is also the library's logger.

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// pluginLog is what the log told.
type pluginLog struct {
	mu         sync.Mutex
	changed    *sync.Cond
	ready      map[string]int // plugins that get events, by name: names need not be unique
	first      bool           // no Synchronize since the start
	launching  int            // plugins launched since the start
	launched   []string       // those of them that registered
	toSync     []string       // plugins in the present Synchronize
	messages   int            // in which it was sent
	syncFailed bool           // the last one
}

func (l *pluginLog) starting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready, l.first, l.launching, l.launched = map[string]int{}, true, 0, nil
}

// nobodyToSynchronize is true for a Synchronize at the start that is for no plugin.
func (l *pluginLog) nobodyToSynchronize() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.first
	l.first = false
	l.toSync, l.messages = nil, 0
	return first && l.launching == 0
}

// synchronized gives the plugins that the present Synchronize was for, and the messages that it took. NRI before 0.7
// sends one and does not say so.
func (l *pluginLog) synchronized() ([]string, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.toSync, max(1, l.messages)
}

// started ends the start, and gives the launched plugins that are served without having been synchronized.
func (l *pluginLog) started() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.first { // there was a Synchronize
		return nil
	}
	l.first = false
	return l.launched
}

func (l *pluginLog) waitForNone(limit time.Duration) {
	deadline := time.AfterFunc(limit, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ready = map[string]int{}
		l.changed.Broadcast()
	})
	defer deadline.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.ready) > 0 {
		l.changed.Wait()
	}
}

// pluginReady says that a plugin gets events from now on.
func (r *runtime) pluginReady(name string, synchronized bool) {
	l := &r.log
	l.mu.Lock()
	l.ready[name]++
	l.mu.Unlock()
	r.out.event("plugin_ready", map[string]any{"plugin": name, "synchronized": synchronized})
}

func (r *runtime) pluginClosed(name string) {
	r.out.event("plugin_closed", map[string]any{"plugin": name}) // before anybody who waits can go on
	l := &r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ready[name]--; l.ready[name] <= 0 {
		delete(l.ready, name)
	}
	l.changed.Broadcast()
}

// Infof takes the library's lines about plugins. Their texts differ a little from version to version.
func (r *runtime) Infof(_ context.Context, format string, args ...any) {
	l := &r.log
	switch {
	case strings.HasPrefix(format, "plugin %q registered as %q"):
		name := fmt.Sprint(args[1])
		l.mu.Lock()
		if strings.HasPrefix(fmt.Sprint(args[0]), "pre-connected") {
			l.launched = append(l.launched, name)
		}
		l.mu.Unlock()
		r.out.event("plugin_registered", map[string]any{"plugin": name})
	case format == "starting plugin %q...", format == "starting pre-installed NRI plugin %q...":
		l.mu.Lock()
		l.launching++
		l.mu.Unlock()
	case format == "synchronizing plugin %s":
		l.mu.Lock()
		l.toSync = append(l.toSync, fmt.Sprint(args[0]))
		l.mu.Unlock()
	case format == "failed to synchronize plugin: %v":
		r.notSynchronized(fmt.Sprintf(format, args...))
	case format == "plugin %q connected": // NRI before 0.7 says so after a failed Synchronize too
		l.mu.Lock()
		failed := l.syncFailed
		l.syncFailed = false
		l.mu.Unlock()
		if !failed {
			r.pluginReady(fmt.Sprint(args[0]), true)
		}
	case format == "plugin %q connected and synchronized", format == "pre-installed NRI plugin %q synchronization success":
		r.pluginReady(fmt.Sprint(args[0]), true)
	case format == "connection to plugin %q closed":
		r.pluginClosed(fmt.Sprint(args[0]))
	}
}

func (r *runtime) notSynchronized(message string) {
	r.log.mu.Lock()
	r.log.syncFailed = true
	r.log.mu.Unlock()
	r.out.event("not_synchronized", map[string]any{"message": message})
}

// Debugf counts the messages of a Synchronize. One that turned out too large was not sent.
func (r *runtime) Debugf(_ context.Context, format string, _ ...any) {
	l := &r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case strings.HasPrefix(format, "sending sync message"):
		l.messages++
	case strings.HasPrefix(format, "oversized message, retrying"):
		l.messages--
	}
}

// Warnf passes a warning on.
func (r *runtime) Warnf(_ context.Context, format string, args ...any) {
	r.out.event("nri_warning", map[string]any{"message": fmt.Sprintf(format, args...)})
}

// Errorf passes an error on.
func (r *runtime) Errorf(_ context.Context, format string, args ...any) {
	if message := fmt.Sprintf(format, args...); strings.HasPrefix(message, "failed to synchronize plugin") {
		r.notSynchronized(message)
	} else {
		r.out.event("nri_error", map[string]any{"message": message})
	}
}
