package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/emiago/sipgo"
	"github.com/emiago/sipgo/sip"

	"example.com/phone/media"
)

const (
	byeTimeout      = 5 * time.Second
	responseTimeout = 20 * time.Second
	maxNotifies     = 16 // of a REFER that wait to be read
)

// dialog is what sipgo's dialogs of both roles have in common.
type dialog interface {
	TransactionRequest(ctx context.Context, req *sip.Request) (sip.ClientTransaction, error)
	WriteRequest(req *sip.Request) error
	WriteBye(ctx context.Context, bye *sip.Request) error
	ReadBye(req *sip.Request, tx sip.ServerTransaction) error
	ReadRequest(req *sip.Request, tx sip.ServerTransaction) error
	Context() context.Context
}

// leg is one SIP dialog with its audio. Its methods are safe for concurrent use.
type leg struct {
	phone       *Phone
	dialog      dialog
	audio       *media.Stream
	callID, tag string
	remote      string // masked, for logs
	replaces    string // the dialog in a header Replaces, if this side began it

	notifies chan int                // SIP statuses of NOTIFY requests after a REFER
	acks     chan struct{}           // of re-INVITEs
	target   atomic.Pointer[sip.Uri] // the other side's contact
	direct   atomic.Bool             // the other side's audio goes to the target of a transfer
}

// newLeg opens a port for the audio of a dialog with a side.
func (p *Phone) newLeg(side sip.Uri) (*leg, error) {
	audio, err := media.Listen(p.config.SIP.Addr(), p.config.RTP)
	if err != nil {
		return nil, err
	}
	l := &leg{
		phone: p, audio: audio, remote: maskURI(side),
		notifies: make(chan int, maxNotifies), acks: make(chan struct{}, 1),
	}
	l.target.Store(&side)
	return l, nil
}

// begin registers the dialog, so that requests find it.
func (l *leg) begin(d dialog, callID *sip.CallIDHeader, local sip.HeaderParams) {
	l.dialog, l.callID, l.tag = d, callID.Value(), local.GetOr("tag", "")
	l.phone.legs.Store(l.callID+l.tag, l)
}

// close forgets the dialog and closes the audio.
func (l *leg) close() {
	l.phone.legs.Delete(l.callID + l.tag)
	l.audio.Close()
}

// hangUp sends a BYE with headers, unless the dialog has ended, and closes the leg.
func (l *leg) hangUp(headers []sip.Header) {
	defer l.close()
	if l.dialog.Context().Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.phone.ctx), byeTimeout)
	defer cancel()
	if err := l.dialog.WriteBye(ctx, l.request(sip.BYE, headers)); err != nil {
		l.phone.log.Warn("BYE failed", "to", l.remote, "error", err)
	}
}

func (l *leg) request(method sip.RequestMethod, headers []sip.Header) *sip.Request {
	req := sip.NewRequest(method, *l.target.Load().Clone())
	for _, h := range headers {
		req.AppendHeader(h)
	}
	return req
}

// do sends a request in the dialog and returns the response, if it is a success. That of
// a re-INVITE is acknowledged whenever it arrives.
func (l *leg) do(ctx context.Context, req *sip.Request) (*sip.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	tx, err := l.dialog.TransactionRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	for {
		select {
		case res := <-tx.Responses():
			switch {
			case res.IsProvisional():
				continue
			case !res.IsSuccess():
				return nil, &sipgo.ErrDialogResponse{Res: res}
			case req.IsInvite():
				ack := l.request(sip.ACK, nil)
				err = l.dialog.WriteRequest(ack)
				tx.OnRetransmission(func(*sip.Response) { _ = l.phone.dialogs.Client.WriteRequest(ack.Clone()) })
			}
			return res, err
		case <-tx.Done():
			return nil, errors.Join(errors.New("no response"), tx.Err())
		case <-ctx.Done():
			tx.Terminate()
			return nil, ctx.Err()
		}
	}
}

// reinvite offers another stream and takes the answer.
func (l *leg) reinvite(ctx context.Context, offer []byte) error {
	req := l.request(sip.INVITE, []sip.Header{sip.NewHeader("Content-Type", "application/sdp")})
	req.SetBody(offer)
	res, err := l.do(ctx, req)
	if err != nil {
		return err
	}
	return l.takeRemote(&res.MessageData)
}

// takeRemote takes the other side's contact and SDP from a message.
func (l *leg) takeRemote(m *sip.MessageData) error {
	if contact := m.Contact(); contact != nil {
		l.target.Store(&contact.Address)
	}
	d, err := media.ParseSDP(m.Body())
	if err == nil {
		source, _ := netip.ParseAddrPort(m.Source()) // a host name is of no use
		l.audio.SetRemote(d, source.Addr())
	}
	return err
}

// answer takes an offer and returns the SDP of this side: an offer if there was none.
func (l *leg) answer(req *sip.Request) ([]byte, error) {
	if l.direct.Load() {
		return nil, errors.New("the audio goes to the target of a transfer")
	}
	err := l.takeRemote(&req.MessageData)
	if len(req.Body()) == 0 {
		return media.Offer(l.audio.Local()), nil
	}
	return l.audio.Remote().Answer(l.audio.Local()), err
}

// onAck confirms the dialog, or the answer to a re-INVITE. The ACK of an INVITE without
// SDP has the answer.
func (l *leg) onAck(req *sip.Request, tx sip.ServerTransaction) {
	_ = l.takeRemote(&req.MessageData) // usually there is no SDP
	if server, ok := l.dialog.(*sipgo.DialogServerSession); ok {
		_ = server.ReadAck(req, tx) // an ACK with another number confirms nothing
	}
	select {
	case l.acks <- struct{}{}:
	default:
	}
}

// onReinvite answers a changed offer, such as hold. It waits for the ACK.
func (l *leg) onReinvite(req *sip.Request, tx sip.ServerTransaction) {
	if l.dialog.ReadRequest(req, tx) != nil {
		respond(req, tx, sip.StatusInternalServerError, "Out Of Order")
		return
	}
	body, err := l.answer(req)
	if err != nil {
		respond(req, tx, sip.StatusNotAcceptableHere, "Not Acceptable Here")
		return
	}
	response := sip.NewSDPResponseFromRequest(req, body)
	response.AppendHeader(sip.HeaderClone(&l.phone.dialogs.ContactHDR))
	select { // of an earlier request
	case <-l.acks:
	default:
	}
	for wait := sip.T1; tx.Respond(response) == nil; wait = min(2*wait, sip.T2) {
		select {
		case <-l.acks:
			return
		case <-l.dialog.Context().Done():
			return
		case <-tx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// onNotify passes the status in a NOTIFY of a REFER to the transfer that waits for it.
func (l *leg) onNotify(req *sip.Request, tx sip.ServerTransaction) {
	status, err := parseFragment(req.Body())
	event := req.GetHeader("Event")
	if event == nil || !strings.HasPrefix(event.Value(), "refer") || err != nil {
		respond(req, tx, 489, "Bad Event")
		return
	}
	respond(req, tx, sip.StatusOK, "OK")
	select {
	case l.notifies <- status:
	default: // nobody reads so many
	}
}

// parseFragment returns the status of a message/sipfrag body such as SIP/2.0 200 OK.
func parseFragment(body []byte) (status int, err error) {
	if _, err = fmt.Sscanf(string(body), "SIP/2.0 %3d", &status); err == nil && (status < 100 || status > 699) {
		err = errors.New("invalid message/sipfrag")
	}
	return status, err
}

func parseURI(text string) (uri sip.Uri, err error) {
	if err = sip.ParseUri(text, &uri); err == nil && (uri.Host == "" || !strings.HasPrefix(uri.Scheme, "sip")) {
		err = errors.New("not a SIP URI")
	}
	return uri, err
}

// maskURI returns a SIP URI with the last four characters of its user only.
func maskURI(uri sip.Uri) string {
	hidden := max(0, len(uri.User)-4)
	return "sip:" + strings.Repeat("*", hidden) + uri.User[hidden:] + "@" + uri.Host
}
