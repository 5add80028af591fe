// Holds the namespaces of a pod open: waits for a signal to end, and collects orphaned processes.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	ended := make(chan os.Signal, 8)
	signal.Notify(ended, syscall.SIGCHLD)
	for {
		select {
		case <-stop:
			return
		case <-ended:
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}
