//go:build !linux

package media

import "errors"

func (d fd) renameNew(string, fd, string) error { return errors.ErrUnsupported }
