package endpoint

import (
	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// ParseProfile reads a flow's gateway profile and reports everything wrong with
// it. Members this version does not know pass and are kept.
func ParseProfile(data []byte) (wire.GatewayProfile, error) {
	var p wire.GatewayProfile
	var issues fault.Issues
	if err := strictjson.Decode(data, &p, "", &issues); err != nil {
		return wire.GatewayProfile{}, err
	}
	command.CheckProfile(p, "", &issues)
	if err := issues.Err(); err != nil {
		return wire.GatewayProfile{}, err
	}
	return p, nil
}
