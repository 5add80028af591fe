// Clears the nodes of a JSON file again and again. It reads lines from its standard input: a number
// of passes, answered by the CPU seconds that they took; or `plans`, answered by the grants.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

var kept Plan // what is made must not be optimised away

func main() {
	data, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	var nodes []Node
	if err := json.Unmarshal(data, &nodes); err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if lines.Text() == "plans" {
			all := make([]map[string]int64, len(nodes))
			for i := range nodes {
				all[i] = Clear(&nodes[i]).Allocations
			}
			written, _ := json.Marshal(all)
			fmt.Println(string(written))
			continue
		}
		passes, err := strconv.Atoi(lines.Text())
		if err != nil {
			panic(err)
		}
		began := cpuSeconds()
		for range make([]struct{}, passes) {
			for i := range nodes {
				kept = Clear(&nodes[i])
			}
		}
		fmt.Println(cpuSeconds() - began)
	}
}

func cpuSeconds() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return seconds(used.Utime) + seconds(used.Stime)
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
