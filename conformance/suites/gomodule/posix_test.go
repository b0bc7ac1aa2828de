// Package posixtest runs go-fuse's table of tests, each in a directory of its own below DIR.
package posixtest

import (
	"os"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

func Test(t *testing.T) {
	for name, test := range posixtest.All {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp(os.Getenv("DIR"), name)
			if err != nil {
				t.Fatal(err)
			}
			test(t, dir)
		})
	}
}
