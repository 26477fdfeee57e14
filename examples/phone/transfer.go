package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/emiago/sipgo"
	"github.com/emiago/sipgo/sip"
	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"

	"example.com/phone/media"
)

const maxGrace = 10 * time.Second

// transfer is one transfer of a call. Run does the work outside of the call's loop.
type transfer struct {
	*wire.Transfer
	call   *call
	caller *leg
	method string
	uri    sip.Uri // the target; empty for sip_bye
}

// transfer speaks the message of a transfer and starts it after playback.
func (c *call) transfer(cmd *wire.Transfer) {
	t := &transfer{Transfer: cmd, call: c, caller: c.leg, method: cmp.Or(cmd.TransferMethod, "sip_refer")}
	if err := t.findTarget(); err != nil {
		t.done(nil, err)
		return
	}
	c.say(&item{text: cmd.Message})
	c.endAfterPlayback(func() {
		t.report("started", nil)
		c.tasks.Go(func() {
			other, err := t.run(c.ctx)
			if !c.post(func() { t.done(other, err) }) && other != nil { // the caller has hung up meanwhile
				other.hangUp(nil)
			}
		})
	})
}

// findTarget finds the SIP URI of the target. A number goes to the trunk of its routing
// pool. Without a trunk, a REFER leaves the number to the caller's own server.
func (t *transfer) findTarget() (err error) {
	trunk, found := t.call.phone.config.Trunks[t.TransferRoutingPool]
	switch {
	case t.method == "sip_bye":
		return nil
	case strings.HasPrefix(t.Target, "sip"):
		t.uri, err = parseURI(t.Target)
		return err
	case found:
		t.uri = *trunk.Clone()
	case t.TransferRoutingPool == "" && t.refers():
		t.uri = *t.caller.target.Load().Clone()
	default:
		return fmt.Errorf("no trunk for the routing pool %q: set PHONE_TRUNKS", t.TransferRoutingPool)
	}
	t.uri.User, _, _ = strings.Cut(strings.TrimPrefix(t.Target, "tel:"), ";")
	t.uri.UriParams.Add("user", "phone")
	return nil
}

// report shows the progress of a transfer. The target is masked.
func (t *transfer) report(state string, more map[string]any) {
	status := map[string]any{"event": "transfer", "method": t.method, "state": state, "target": maskURI(t.uri)}
	maps.Copy(status, more)
	t.call.status(status)
}

// done ends the call, or connects it to the other leg. If the transfer has failed, the
// caller returns to the bot, which learns of it with the next question.
func (t *transfer) done(other *leg, err error) {
	c := t.call
	c.commandResult(t.Common(), err)
	if err != nil {
		more := map[string]any{"reason": err.Error()}
		if response := new(sipgo.ErrDialogResponse); errors.As(err, &response) {
			more["status"] = response.Res.StatusCode
		}
		t.report("failed", more)
		c.context["transfer"], _ = json.Marshal(map[string]string{"state": "failed", "target": maskURI(t.uri)})
		c.ending = nil
		c.say(&item{text: "The transfer has failed."})
		return
	}
	t.report("done", nil)
	switch {
	case other == nil && t.method == "sip_bye":
		headers := slices.Concat(t.HangupSIPHeaders, t.TransferSIPHeaders)
		c.end("transferred", c.sipHeaders(headers, reasonHeader(cmp.Or(t.HandoverReason, t.HangupReason), 16))...)
	case other == nil:
		c.end("transferred", c.sipHeaders(nil)...)
	case t.method != "sip_invite_bridge": // a bridge keeps the channel until one hangs up
		c.endChannel("transferred")
	}
	c.other = other
}

// run carries out the method. It returns the leg to which the call is connected, if any.
func (t *transfer) run(ctx context.Context) (other *leg, err error) {
	dial := t.call.phone.dial
	switch t.method {
	case "sip_bye":
	case "sip_refer":
		err = t.refer(ctx, nil)
	case "sip_refer_replace":
		if other, err = dial(ctx, t.uri, nil, t.headers()); err == nil {
			err = t.refer(ctx, other)
			other.hangUp(nil)
		}
	case "sip_invite", "sip_invite_bridge":
		return dial(ctx, t.uri, nil, t.headers())
	case "sip_invite_reinvite_p2p":
		other, err = dial(ctx, t.uri, t.caller.audio.Remote().Reoffer(), t.headers())
		if err == nil {
			err = t.connectDirectly(ctx, other)
		}
		return other, err
	default:
		err = fmt.Errorf("unsupported transfer method %q", t.method)
	}
	if err == nil { // the time until the BYE
		t.caller.wait(ctx, ms(int64(valueOf(t.TransferNotificationsHangupMS))))
	}
	return nil, err
}

// wait waits until the leg ends, but not longer than d.
func (l *leg) wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(min(d, maxGrace)):
	case <-l.dialog.Context().Done():
	case <-ctx.Done():
	}
}

// refer sends a REFER to the caller, with the dialog that it replaces. In the mode notify
// it waits for the outcome.
func (t *transfer) refer(ctx context.Context, consultation *leg) error {
	uri := t.uri
	for _, q := range t.query() {
		uri.Headers = append(uri.Headers, sip.HeaderKV{K: escape(q.Name), V: escape(q.Value)})
	}
	if consultation != nil {
		uri.Headers = append(uri.Headers, sip.HeaderKV{K: "Replaces", V: escape(consultation.replaces)})
	}
	headers := append(t.headers(), sip.NewHeader("Refer-To", "<"+uri.String()+">"))
	blind := t.TransferReferOutcomeMode != "notify"
	if blind {
		headers = append(headers, sip.NewHeader("Refer-Sub", "false"), sip.NewHeader("Supported", "norefersub")) // RFC 4488
	}
	_, err := t.caller.do(ctx, t.caller.request(sip.REFER, headers))
	if err == nil && !blind {
		err = t.outcome(ctx)
	}
	if err == nil && consultation != nil { // the target ends it when it was replaced
		consultation.wait(ctx, maxGrace)
	}
	return err
}

// outcome waits for the NOTIFY with the final status of a REFER.
func (t *transfer) outcome(ctx context.Context) error {
	timeout := time.After(t.call.phone.config.RingTimeout)
	for {
		select {
		case status := <-t.caller.notifies:
			if valueOf(t.TransferNotifications) {
				t.call.post(func() { t.report("progress", map[string]any{"status": status}) })
			}
			if status >= 300 {
				return fmt.Errorf("the target answered %d", status)
			}
			if status >= 200 {
				return nil
			}
		case <-timeout:
			return errors.New("no outcome of the REFER in time")
		case <-t.caller.dialog.Context().Done(): // the caller is with the target
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// connectDirectly gives the target's SDP to the caller, whose SDP the target has, so that
// their audio does not pass through this program.
func (t *transfer) connectDirectly(ctx context.Context, other *leg) error {
	offered := t.caller.audio.Remote()
	err := t.caller.reinvite(ctx, other.audio.Remote().Reoffer())
	answer := t.caller.audio.Remote()
	if err == nil && (answer.Remote != offered.Remote || answer.Codec != offered.Codec) {
		if err = other.reinvite(ctx, answer.Reoffer()); err != nil {
			_ = t.caller.reinvite(ctx, media.Offer(t.caller.audio.Local())) // back to the bot
		}
	}
	if err != nil {
		other.hangUp(nil)
		return fmt.Errorf("caller and target cannot talk directly: %w", err)
	}
	for _, l := range []*leg{t.caller, other} {
		l.direct.Store(true)
		l.audio.SetRemote(media.Description{}, netip.Addr{}) // nothing to send, nothing to hear
	}
	return nil
}

// refers reports whether the caller gets a REFER.
func (t *transfer) refers() bool { return strings.HasPrefix(t.method, "sip_refer") }

// headers returns the headers of a REFER or an INVITE. For an INVITE they include the
// query parameters of the target: RFC 3261 makes headers of them.
func (t *transfer) headers() []sip.Header {
	list := t.TransferSIPHeaders
	if !t.refers() {
		list = slices.Concat(list, t.query())
	}
	if t.TransferReferredByURL == "" {
		return t.call.sipHeaders(list)
	}
	return t.call.sipHeaders(list, sip.NewHeader("Referred-By", "<"+strings.Trim(t.TransferReferredByURL, "<>")+">"))
}

func (t *transfer) query() []wire.NameValue {
	return slices.Concat(t.TransferSIPQueryParams.List, t.SIPQueryParams.List)
}

// escape escapes a header in a SIP URI.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
