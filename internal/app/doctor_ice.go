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

// iceServers checks that every STUN server answers, and that every TURN server accepts its
// configured credential, or one that is made as for a session.
func (d *diagnosis) iceServers(ctx context.Context) (string, error) {
	list := d.cfg.ICEServerList()
	switch {
	case len(list) == 0 && d.cfg.FeatureWebRTC:
		return "", warningf("not configured: browsers behind NAT can't use WebRTC. Set WEBRTC_ICE_SERVERS to STUN and TURN servers, or FEATURE_WEBRTC=false")
	case len(list) == 0:
		return "not needed: FEATURE_WEBRTC is false", nil
	}
	ice := session.ICEConfig{Servers: list, Secret: d.cfg.TURNSecret}
	for _, server := range ice.For("doctor-"+uuid.NewString(), time.Now().Add(time.Minute)) {
		for _, url := range server.URLs {
			text, err := probeICE(ctx, url, server)
			if err != nil {
				err = fmt.Errorf("%s: %w", url, err)
			}
			d.add("ice servers", url+": "+text, err)
		}
	}
	return "", nil
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
		port := "3478"
		if secure {
			port = "5349"
		}
		address = net.JoinHostPort(strings.Trim(address, "[]"), port)
	}
	conn, err := dialICE(ctx, address, secure, query == "transport=tcp")
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

func dialICE(ctx context.Context, address string, secure, tcp bool) (net.PacketConn, error) {
	if !secure && !tcp { // UDP has no connection: only the probe shows whether the server answers
		return new(net.ListenConfig).ListenPacket(ctx, "udp", ":0")
	}
	dial := new(net.Dialer).DialContext
	if secure {
		dial = new(tls.Dialer).DialContext
	}
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return turn.NewSTUNConn(conn), nil
}
