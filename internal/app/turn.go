package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/pion/turn/v4"

	"telapi/callruntime/wire"
	"telapi/internal/session"
)

// turnTimeout bounds the probe of one STUN or TURN server.
const turnTimeout = 5 * time.Second

// iceServers checks that every STUN server answers and that every TURN server accepts
// a credential like that of a session.
func (d *diagnosis) iceServers(ctx context.Context) {
	const check = "ice servers"
	list, err := d.cfg.ICEServerList()
	if err != nil { // reported as a configuration problem
		return
	}
	ice := session.ICEConfig{Servers: list, Secret: d.cfg.TURNSecret}
	for _, server := range ice.For("doctor-"+uuid.NewString(), time.Now().Add(time.Minute)) {
		for _, url := range server.URLs {
			text, err := probeICE(ctx, url, server)
			if err != nil {
				err = fmt.Errorf("%s: %w", url, err)
			}
			d.add(check, url+": "+text, err)
		}
	}
	switch {
	case len(list) > 0:
	case d.cfg.FeatureWebRTC:
		d.warn(check, "not configured: browsers behind NAT can't use WebRTC. Set WEBRTC_ICE_SERVERS to STUN and TURN servers, or FEATURE_WEBRTC=false")
	default:
		d.add(check, "not needed: FEATURE_WEBRTC is false", nil)
	}
}

// probeICE sends a binding request to a STUN server, or allocates a relay on a TURN
// server.
func probeICE(ctx context.Context, url string, server wire.ICEServer) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	scheme, address, _ := strings.Cut(url, ":")
	address, query, _ := strings.Cut(address, "?")
	secure := strings.HasSuffix(scheme, "s")
	if _, _, err := net.SplitHostPort(address); err != nil {
		port := map[bool]string{false: "3478", true: "5349"}[secure]
		address = net.JoinHostPort(strings.Trim(address, "[]"), port)
	}
	conn, err := dialICE(ctx, address, secure, secure || query == "transport=tcp")
	if err != nil {
		return "", fmt.Errorf("unreachable: %w", err)
	}
	defer func() { _ = conn.Close() }()
	client, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr: address, TURNServerAddr: address, Conn: conn, Username: server.Username, Password: server.Credential,
	})
	if err == nil {
		err = client.Listen()
	}
	if err != nil {
		return "", fmt.Errorf("start probe: %w", err)
	}
	defer client.Close()
	stop := context.AfterFunc(ctx, client.Close) // the library has no context
	defer stop()
	if strings.HasPrefix(scheme, "stun") {
		mapped, err := client.SendBindingRequest()
		if err != nil {
			return "", fmt.Errorf("no answer to a binding request: %w. Check address and firewall", err)
		}
		return "available; it sees this machine as " + mapped.String(), nil
	}
	relay, err := client.Allocate()
	if err != nil {
		return "", fmt.Errorf("no relay: %w. Check that TURN_SHARED_SECRET is static-auth-secret of the TURN server, and that their clocks agree", err)
	}
	defer func() { _ = relay.Close() }()
	return "available; it relays through " + relay.LocalAddr().String(), nil
}

func dialICE(ctx context.Context, address string, secure, stream bool) (net.PacketConn, error) {
	var dialer net.Dialer
	switch {
	case secure:
		conn, err := (&tls.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return turn.NewSTUNConn(conn), nil
	case stream:
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return turn.NewSTUNConn(conn), nil
	}
	return new(net.ListenConfig).ListenPacket(ctx, "udp", ":0")
}
