package media

import (
	"io/fs"
	"syscall"
	"time"
)

// accessed is when a file was used last.
func accessed(info fs.FileInfo) time.Time {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.ModTime()
	}
	return time.Unix(stat.Atim.Unix())
}
