// Command runtime plays the container runtime's side of NRI without containers: it serves an NRI socket with the
// library that containerd and CRI-O use, keeps a book of pods and containers as they do, and relays life-cycle events
// that it reads as JSON lines from standard input. What plugins answer, and what they do by themselves, goes to
// standard output, one JSON line each. It ends when standard input does. README.md lists commands and lines.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	nrilog "github.com/containerd/nri/pkg/log"
)

// The longest line read: a container with more than ttrpc's 4 MiB, quoted, and room to spare.
const maxLine = 64 << 20

// output writes one JSON line per value.
type output struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (o *output) line(v any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.enc.Encode(v); err != nil {
		os.Exit(1) // whoever reads is gone
	}
}

func (o *output) event(name string, fields map[string]any) {
	line := map[string]any{"event": name, "t": time.Now().UnixNano()}
	for k, v := range fields {
		line[k] = v
	}
	o.line(line)
}

func main() {
	var (
		rt   = newRuntime(&output{enc: json.NewEncoder(os.Stdout)})
		made madeUp

		plugins         = flag.String("plugin-path", "", "folder of plugins to launch (NN-name); none if empty")
		config          = flag.String("plugin-config-path", "", "folder of the launched plugins' configuration")
		requestLimit    = flag.Duration("request-timeout", adaptation.DefaultPluginRequestTimeout, "limit for a plugin's answer")
		registrationEnd = flag.Duration("registration-timeout", adaptation.DefaultPluginRegistrationTimeout, "limit for a plugin to register")
	)
	flag.StringVar(&rt.socket, "socket", "", "NRI socket to listen on (required)")
	flag.StringVar(&rt.name, "name", "nri-runtime", "name that plugins are told")
	flag.StringVar(&rt.version, "version", "v0.0.0", "version that plugins are told")
	flag.BoolVar(&rt.strict, "strict-updates", false, "an update that fails also fails what it came with, as in CRI-O")
	flag.IntVar(&made.Pods, "pods", 0, "make up this many running pods")
	flag.IntVar(&made.Containers, "containers", 1, "containers in each made-up pod")
	flag.IntVar(&made.Padding, "padding", 0, "bytes to add to each made-up container")
	flag.IntVar(&made.IDBytes, "id-bytes", 0, "shortest id of a made-up container")
	if flag.Parse(); rt.socket == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	nrilog.Set(rt)
	adaptation.SetPluginRequestTimeout(*requestLimit)
	adaptation.SetPluginRegistrationTimeout(*registrationEnd)
	rt.book.makeUp(made)
	rt.options = []adaptation.Option{
		adaptation.WithSocketPath(rt.socket),
		adaptation.WithPluginPath(pathOrNowhere(*plugins)),
		adaptation.WithPluginConfigPath(pathOrNowhere(*config)),
	}
	rt.out.event("ready", map[string]any{"pid": os.Getpid(), "socket": rt.socket, "libraries": libraries()})
	err := rt.start()
	if err == nil {
		err = rt.serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nri-runtime:", err)
		os.Exit(1)
	}
}

// pathOrNowhere keeps the library from its default folders, which may hold plugins of this machine.
func pathOrNowhere(path string) string {
	if path == "" {
		return "/nonexistent"
	}
	return path
}

// serve carries out the commands of standard input, in order unless they say otherwise, until it ends. Commands that
// hang (some versions of NRI can deadlock) do not keep the process alive.
func (r *runtime) serve() error {
	commands := make(chan command, 1024)
	go func() {
		for c := range commands {
			if c.Async {
				go func() { r.out.line(r.do(c)) }()
			} else {
				r.out.line(r.do(c))
			}
		}
	}()

	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		var c command
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			r.out.line(reply{Op: "?", Error: "not a command: " + err.Error()})
			continue
		}
		commands <- c
	}
	ended := make(chan error, 1)
	go func() { ended <- r.stop() }()
	select {
	case <-ended:
	case <-time.After(time.Second):
		os.Remove(r.socket)
	}
	if errors.Is(in.Err(), os.ErrClosed) {
		return nil
	}
	return in.Err()
}
