package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/emiago/sipgo"
	"github.com/emiago/sipgo/sip"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"

	"example.com/phone/media"
)

const (
	allowedMethods = "INVITE, ACK, CANCEL, BYE, OPTIONS, NOTIFY"
	openTimeout    = 10 * time.Second // for the channel of a call that rings
	maxCallID      = 128              // characters that a channel takes
	maxMessage     = 60_000           // bytes over UDP: a transfer may have 12,000 characters of headers
)

// Phone is the SIP side of the runtime: it answers and places calls.
type Phone struct {
	ctx     context.Context // of calls, which the SIP library starts
	config  Config
	log     *slog.Logger
	runtime *callruntime.Runtime
	http    http.Client
	ua      *sipgo.UserAgent
	server  *sipgo.Server
	dialogs *sipgo.DialogUA
	slots   chan struct{} // one for each call
	legs    sync.Map      // by Call-ID and local tag
}

// NewPhone prepares the user agent. Calls end with ctx.
func NewPhone(ctx context.Context, config Config, runtime *callruntime.Runtime, log *slog.Logger) (*Phone, error) {
	// The library logs whole messages, with numbers.
	sip.SetDefaultLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	sip.UDPMTUSize = maxMessage
	host, address := config.SIP.Addr().String(), config.SIP.String()
	ua, err := sipgo.NewUA(sipgo.WithUserAgent("telapi-phone"), sipgo.WithUserAgentHostname(host))
	if err != nil {
		return nil, fmt.Errorf("start SIP: %w", err)
	}
	server, serverErr := sipgo.NewServer(ua)
	client, err := sipgo.NewClient(ua, sipgo.WithClientAddr(address), sipgo.WithClientNAT(), sipgo.WithClientConnectionAddr(address))
	if err = errors.Join(err, serverErr); err != nil {
		return nil, fmt.Errorf("start SIP: %w", err)
	}
	contact := sip.ContactHeader{Address: sip.Uri{Scheme: "sip", User: "bot", Host: host, Port: int(config.SIP.Port())}}
	p := &Phone{
		ctx: ctx, config: config, log: log, runtime: runtime,
		ua: ua, server: server, dialogs: &sipgo.DialogUA{Client: client, RewriteContact: true, ContactHDR: contact},
		slots: make(chan struct{}, config.MaxCalls),
		http: http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // another server must not get the keys
		}},
	}
	server.OnInvite(p.onInvite)
	server.OnAck(p.inDialog((*leg).onAck))
	server.OnBye(p.inDialog(func(l *leg, req *sip.Request, tx sip.ServerTransaction) {
		_ = l.dialog.ReadBye(req, tx) // an unanswered BYE is repeated and gets 481
	}))
	server.OnNotify(p.inDialog((*leg).onNotify))
	server.OnCancel(unknownDialog) // the library handles the CANCEL of a pending INVITE
	server.OnOptions(func(req *sip.Request, tx sip.ServerTransaction) {
		respond(req, tx, sip.StatusOK, "OK", sip.NewHeader("Accept", "application/sdp"))
		tx.Terminate() // a repeated request gets another response, so that a flood needs no memory
	})
	server.OnNoRoute(func(req *sip.Request, tx sip.ServerTransaction) {
		respond(req, tx, sip.StatusMethodNotAllowed, "Method Not Allowed")
	})
	return p, nil
}

// Serve answers calls until the context of the phone ends.
func (p *Phone) Serve() error {
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(p.config.SIP))
	if err != nil {
		return fmt.Errorf("listen for SIP: %w", err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = p.server.ServeUDP(socket) }) // it ends when the socket is closed
	p.endOldChannels()
	p.log.InfoContext(p.ctx, "ready", "call", "sip:bot@"+p.config.SIP.String())
	<-p.ctx.Done()
	for range cap(p.slots) { // calls end with ctx, and no new ones begin
		p.slots <- struct{}{}
	}
	err = p.ua.Close()
	_ = socket.Close() // the user agent may have closed it
	serving.Wait()
	return err
}

func respond(req *sip.Request, tx sip.ServerTransaction, status int, reason string, headers ...sip.Header) {
	response := sip.NewResponseFromRequest(req, status, reason, nil)
	for _, h := range append(headers, sip.NewHeader("Allow", allowedMethods)) {
		response.AppendHeader(h)
	}
	_ = tx.Respond(response) // the other side repeats its request
}

func unknownDialog(req *sip.Request, tx sip.ServerTransaction) {
	if !req.IsAck() {
		respond(req, tx, sip.StatusCallTransactionDoesNotExists, "Call/Transaction Does Not Exist")
	}
}

// valid reports whether a request has the headers that every request must have.
func valid(req *sip.Request) bool {
	return req.From() != nil && req.From().Params.Has("tag") && req.To() != nil && req.CallID() != nil && req.CSeq() != nil && req.Via() != nil
}

// inDialog passes requests to the leg to which they belong.
func (p *Phone) inDialog(handle func(*leg, *sip.Request, sip.ServerTransaction)) sipgo.RequestHandler {
	return func(req *sip.Request, tx sip.ServerTransaction) {
		if valid(req) {
			if l, found := p.legs.Load(req.CallID().Value() + req.To().Params.GetOr("tag", "")); found {
				handle(l.(*leg), req, tx)
				return
			}
		}
		unknownDialog(req, tx)
	}
}

func (p *Phone) onInvite(req *sip.Request, tx sip.ServerTransaction) {
	switch required := req.GetHeader("Require"); {
	case !valid(req) || req.Contact() == nil:
		respond(req, tx, sip.StatusBadRequest, "Bad Request")
	case req.To().Params.Has("tag"):
		p.inDialog((*leg).onReinvite)(req, tx)
	case required != nil: // 100rel, timer and others: none is supported
		respond(req, tx, sip.StatusBadExtension, "Bad Extension", sip.NewHeader("Unsupported", required.Value()))
	default:
		select {
		case p.slots <- struct{}{}:
			if err := p.answer(req, tx); err != nil {
				p.log.Warn("call not answered", "from", maskURI(req.From().Address), "error", err)
			}
			<-p.slots
		default:
			respond(req, tx, sip.StatusServiceUnavailable, "Service Unavailable", sip.NewHeader("Retry-After", "10"))
		}
	}
}

// answer answers a new call and runs it.
func (p *Phone) answer(req *sip.Request, tx sip.ServerTransaction) error {
	dialog, err := p.dialogs.ReadInvite(req, tx)
	if err != nil { // the caller has gone
		return err
	}
	l, err := p.newLeg(req.From().Address)
	if err != nil {
		return errors.Join(err, dialog.Respond(sip.StatusServiceUnavailable, "Service Unavailable", nil))
	}
	body, err := l.answer(req)
	if err != nil {
		l.close()
		return errors.Join(err, dialog.Respond(sip.StatusNotAcceptableHere, "Not Acceptable Here", nil))
	}
	l.begin(dialog, req.CallID(), dialog.InviteRequest.To().Params)
	transaction := uuid.NewString()
	if h := req.GetHeader(wire.TransactionHeader); h != nil && uuid.Validate(h.Value()) == nil {
		transaction = h.Value()
	}
	_ = dialog.Respond(sip.StatusRinging, "Ringing", nil) // optional
	c, err := p.open(dialog.Context(), l, transaction)    // CANCEL ends it
	if err != nil {
		l.close()
		if dialog.Context().Err() == nil {
			err = errors.Join(err, dialog.Respond(sip.StatusServiceUnavailable, "Service Unavailable", nil, sip.NewHeader("Retry-After", "5")))
		}
		return err
	}
	err = dialog.Respond(sip.StatusOK, "OK", body, sip.NewHeader("Content-Type", "application/sdp"),
		sip.NewHeader(wire.TransactionHeader, transaction), sip.NewHeader("Allow", allowedMethods))
	if err != nil { // it waits for the ACK
		c.end("no_ack")
	}
	c.run()
	return nil
}

// dial calls a SIP URI and returns the leg once it is answered. The offer is that of this
// program, unless it is set. Ending ctx cancels the call.
func (p *Phone) dial(ctx context.Context, to sip.Uri, offer []byte, headers []sip.Header) (*leg, error) {
	l, err := p.newLeg(to)
	if err != nil {
		return nil, err
	}
	if offer == nil {
		offer = media.Offer(l.audio.Local())
	}
	ringing, cancel := context.WithTimeout(ctx, p.config.RingTimeout)
	defer cancel()
	headers = append(headers, sip.NewHeader("Content-Type", "application/sdp"), sip.NewHeader("Allow", allowedMethods))
	dialog, err := p.dialogs.Invite(ringing, to, offer, headers...)
	if err == nil {
		err = dialog.WaitAnswer(ringing, sipgo.AnswerOptions{Username: p.config.TrunkUser, Password: p.config.TrunkPassword})
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("call %s: %w", l.remote, err)
	}
	invite, response := dialog.InviteRequest, dialog.InviteResponse
	l.begin(dialog, invite.CallID(), invite.From().Params)
	l.replaces = invite.CallID().Value() + ";to-tag=" + response.To().Params.GetOr("tag", "") + ";from-tag=" + invite.From().Params.GetOr("tag", "")
	if err = errors.Join(dialog.Ack(ctx), l.takeRemote(&response.MessageData)); err != nil {
		l.hangUp(nil)
		return nil, fmt.Errorf("call %s: %w", l.remote, err)
	}
	return l, nil
}

// open opens a channel for a call, with the policy of the endpoint.
func (p *Phone) open(ctx context.Context, l *leg, transaction string) (*call, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	profile, err := p.profile(ctx)
	if err != nil {
		return nil, err
	}
	id := "phone-" + uuid.NewString()
	if err := p.recordChannel(id); err != nil {
		return nil, err
	}
	callID := l.callID
	if len(callID) > maxCallID || strings.ContainsFunc(callID, func(r rune) bool { return r < '!' || r > '~' }) {
		callID = id
	}
	channel, err := p.runtime.Open(ctx, id, wire.Open{
		Endpoint: p.config.Endpoint, Mode: "audio", CallID: callID, TransactionID: transaction, Profile: profile,
	})
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	c := &call{
		phone: p, leg: l, channel: channel, log: p.log.With("channel", id, "remote", l.remote),
		events: make(chan func(), maxWork), messages: make(chan func(), maxWork), questions: make(chan func(), maxWork),
		settings: defaultSettings, context: map[string]jsontext.Value{}, timers: map[string]timer{},
	}
	c.ctx, c.stop = context.WithCancel(p.ctx)
	return c, nil
}
