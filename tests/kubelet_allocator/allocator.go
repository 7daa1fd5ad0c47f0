package main

import (
	"fmt"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/utils/cpuset"
)

// machine is the kubelet's view of a node's CPUs, as it makes one at its start from what cAdvisor has found.
func machine(cpus []cpu) *topology.CPUTopology {
	details := topology.CPUDetails{}
	for _, c := range cpus {
		details[c.CPU] = topology.CPUInfo{NUMANodeID: c.NUMA, SocketID: c.Socket, CoreID: c.Core, UncoreCacheID: c.Uncore}
	}
	return &topology.CPUTopology{
		NumCPUs:        len(details),
		NumCores:       details.Cores().Size(),
		NumSockets:     details.Sockets().Size(),
		NumNUMANodes:   details.NUMANodes().Size(),
		NumUncoreCache: details.UncoreCaches().Size(),
		CPUDetails:     details,
	}
}

// take allocates as the static policy does with the options of the request and no hint of the Topology Manager.
func take(topo *topology.CPUTopology, free, reserved cpuset.CPUSet, r request) (cpuset.CPUSet, error) {
	groupSize := 1
	if r.FullPCPUsOnly {
		groupSize = topo.CPUsPerCore()
		if err := enforceSMTAlignment(topo, free, reserved, r.Count); err != nil {
			return cpuset.New(), err
		}
	}
	strategy := cpumanager.CPUSortingStrategyPacked
	switch r.Strategy {
	case "spread":
		strategy = cpumanager.CPUSortingStrategySpread
	case "distributed":
		return takeByTopologyNUMADistributed(klog.Background(), topo, free, r.Count, groupSize, strategy, r.AlignBySocket)
	case "packed":
	default:
		return cpuset.New(), fmt.Errorf("no strategy %q; there are packed, spread and distributed", r.Strategy)
	}
	return takeByTopologyNUMAPacked(klog.Background(), topo, free, r.Count, strategy, r.AlignL3)
}

// enforceSMTAlignment is what the policy looks at under full-pcpus-only before it allocates: the count is a multiple of
// the threads per core, and there are that many CPUs on cores without a reserved thread.
func enforceSMTAlignment(topo *topology.CPUTopology, free, reserved cpuset.CPUSet, count int) error {
	perCore := topo.CPUsPerCore()
	if count%perCore != 0 {
		return cpumanager.SMTAlignmentError{RequestedCPUs: count, CpusPerCore: perCore}
	}
	cores := topo.CPUDetails.KeepOnly(reserved).Cores()
	reservedPhysical := topo.CPUDetails.CPUsInCores(cores.UnsortedList()...)
	if available := free.Difference(reservedPhysical).Size(); count > available {
		return cpumanager.SMTAlignmentError{
			RequestedCPUs: count, CpusPerCore: perCore, AvailablePhysicalCPUs: available, CausedByPhysicalCPUs: true,
		}
	}
	return nil
}
