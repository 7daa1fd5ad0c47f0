package main

import (
	_ "unsafe" // for go:linkname

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/utils/cpuset"
)

// Functions that the kubelet's package doesn't export. They are linked by name, which the linker refuses unless it is
// called with -checklinkname=0.

//go:linkname takeByTopologyNUMAPacked k8s.io/kubernetes/pkg/kubelet/cm/cpumanager.takeByTopologyNUMAPacked
func takeByTopologyNUMAPacked(logger klog.Logger, topo *topology.CPUTopology, available cpuset.CPUSet, count int,
	strategy cpumanager.CPUSortingStrategy, preferAlignByUncoreCache bool) (cpuset.CPUSet, error)

//go:linkname takeByTopologyNUMADistributed k8s.io/kubernetes/pkg/kubelet/cm/cpumanager.takeByTopologyNUMADistributed
func takeByTopologyNUMADistributed(logger klog.Logger, topo *topology.CPUTopology, available cpuset.CPUSet, count,
	groupSize int, strategy cpumanager.CPUSortingStrategy, alignBySocket bool) (cpuset.CPUSet, error)
