// What runs in the lab's containers, and holds their namespaces together: it waits to be told to end, and reaps what is left to
// it, as Kubernetes' own pause does.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			fmt.Println("ended by", received)
			return
		}
		for {
			process, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if process <= 0 || err != nil {
				break
			}
		}
	}
}
