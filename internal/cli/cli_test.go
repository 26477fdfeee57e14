package cli

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"
)

func TestWhatIsReadFromATerminalIsGivenUpAtTheFirstInterrupt(t *testing.T) {
	for _, args := range [][]string{
		{"callback", "lint", "-"},
		{"speech", "warm", "-", "--key", "tk_x"},
	} {
		terminal, typing := io.Pipe()
		t.Cleanup(func() { _ = typing.Close() })
		ctx, interrupt := context.WithCancel(t.Context())
		exit := make(chan int, 1)
		go func() {
			exit <- Run(ctx, Console{Args: args, In: terminal, Out: io.Discard, Err: &bytes.Buffer{}})
		}()
		_, _ = io.WriteString(typing, "{") // returns when it was read: somebody waits for more
		interrupt()
		select {
		case code := <-exit:
			if code != exitFailed {
				t.Errorf("%v exits with %d", args, code)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%v goes on reading", args)
		}
	}
}
