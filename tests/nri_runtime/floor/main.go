// Command floor is a bare NRI plugin over the library's stub with the simplest policy of exclusive CPUs: what a hook
// costs at least in Go, and a plugin for tests of the runtime's side.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/stub"
)

func main() {
	var (
		socket    = flag.String("socket", "", "NRI socket; none when the runtime launches the plugin")
		name      = flag.String("name", "floor", "the plugin's name")
		index     = flag.String("index", "10", "the plugin's index, two digits")
		cpus      = flag.String("cpus", "0-511", "all CPUs")
		reconnect = flag.Bool("reconnect", false, "connect again for ever instead of ending with the connection")
		trouble   = flag.Bool("trouble", false, "misbehave for containers of certain names (trouble.go)")
		slow      = flag.Duration("slow", 3*time.Second, "how slow trouble is")
	)
	flag.Parse()
	all, err := parse(*cpus)
	if err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(2)
	}
	var options []stub.Option
	if *socket != "" {
		options = append(options, stub.WithSocketPath(*socket), stub.WithPluginName(*name), stub.WithPluginIdx(*index))
	}
	for {
		if err = run(newPolicy(all), *trouble, *slow, options); !*reconnect {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

// run serves one connection, from registration to its end.
func run(p *policy, trouble bool, slow time.Duration, options []stub.Option) error {
	var plugin any = p
	misfit := &troubled{policy: p, slow: slow}
	if trouble {
		plugin = misfit
	}
	closed := make(chan struct{})
	var once sync.Once
	s, err := stub.New(plugin, append(options, stub.WithOnClose(func() { once.Do(func() { close(closed) }) }))...)
	if err != nil {
		return err
	}
	misfit.stub = s
	if err := s.Start(context.Background()); err != nil {
		return err
	}
	<-closed
	return nil
}
