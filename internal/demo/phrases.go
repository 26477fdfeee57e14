package demo

import (
	"strings"
	"time"
)

// Phrase is something the bot understands, and what comes of it.
type Phrase struct{ Say, Does string }

// Phrases lists what to try.
func Phrases() []Phrase {
	list := make([]Phrase, 0, len(repertoire))
	for _, e := range repertoire {
		list = append(list, e.Phrase)
	}
	return list
}

// entry is a phrase and the parts of the bot's answer to it.
type entry struct {
	Phrase
	parts []part
}

// part is one answer, under a work item of its own.
type part struct {
	after time.Duration
	body  func(order) any
}

// soon is how long the bot thinks about what is easy.
const soon = 300 * time.Millisecond

// Where the demo transfers to: a target that its flow permits, and one that it
// does not.
const (
	inTown = "tel:+493012345678"
	abroad = "tel:+19005550100"
)

var repertoire = []entry{
	{Phrase{"hello", "small talk; anything else is answered too"}, nil},
	{Phrase{"transfer me", "a transfer that the flow permits: the call is handed over and ends"}, []part{
		{soon, says("I put you through.", custom("transfer", object{"transferTarget": inTown}))}}},
	{Phrase{"transfer me abroad", "a transfer that the flow's policy denies"}, []part{
		{soon, says("I try to put you through abroad.", custom("transfer", object{"transferTarget": abroad}))}}},
	{Phrase{"call me slowly", "digits are collected: press up to four keys, or # after the last"}, []part{
		{soon, says("Press up to four keys, slowly. # submits them.", custom("config", object{"sessionParams": object{
			"sendDTMF": true, "bargeIn": true, "bargeInOnDTMF": true, "dtmfCollect": true, "dtmfDigits": "0123456789",
			"dtmfCollectMaxDigits": 4, "dtmfCollectInterDigitTimeoutMS": 3000, "dtmfCollectSubmitDigit": "#",
		}}))}}},
	{Phrase{"be silent", "comfort prompts while the bot says nothing, then the runtime gives up on it"}, []part{
		{soon, says("I shall say nothing for a while.", custom("config", object{"sessionParams": object{
			"botNoInputTimeoutMs": 2000, "botNoInputSpeech": "The bot is still thinking.", "botNoInputRetries": 1, "botNoInputGiveUpTimeoutMs": 6000,
		}}))},
		{9 * time.Second, says("This comes too late, and is refused.")}}},
	{Phrase{"fail", "the provider reports an error, and the conversation goes on"}, []part{
		{soon, func(order) any {
			return object{"error": object{"code": "DEMO_FAILURE", "message": "The demo bot was asked to fail."}}
		}}}},
	{Phrase{"out of order", "two answers, the second posted first: they arrive in order"}, []part{
		{1500 * time.Millisecond, says("This is the first answer, posted last.")},
		{soon, says("This is the second answer, posted first and parked.")}}},
	{Phrase{"speak", "speech through the media cache, in every mode; say it twice to see a cache hit"}, []part{
		{soon, voiced("This sentence was made once and is kept in the media cache.")}}},
	{Phrase{"hang up", "the call ends once everything was said"}, []part{
		{soon, says("Goodbye.", custom("hangup", object{"hangupReason": "the demo bot hung up"}))}}},
	{Phrase{"help", "the list of these phrases"}, nil},
}

// answersTo finds what the bot has to say.
func answersTo(q question) []part {
	if q.DTMF != "" {
		return []part{{soon, says("You pressed " + strings.Join(strings.Split(q.DTMF, ""), " ") + ".")}}
	}
	said := strings.ToLower(strings.Trim(strings.TrimSpace(q.Text), ".!?"))
	for _, e := range repertoire {
		if said == e.Say && e.parts != nil {
			return e.parts
		}
	}
	if said == "help" {
		return []part{{soon, says(help())}}
	}
	return []part{{soon, says(smallTalk(said, q.Text))}}
}

var talk = []struct{ heard, reply string }{
	{"hello", "Hello! How are you?"},
	{"good morning", "Good morning!"},
	{"how are you", "Always on. And you?"},
	{"who are you", "A demo bot of some hundred lines, reached through a webhook."},
	{"thank", "You are welcome."},
	{"bye", "Goodbye. Say hang up if you mean it."},
}

func smallTalk(said, text string) string {
	for _, t := range talk {
		if strings.Contains(said, t.heard) {
			return t.reply
		}
	}
	return `You said "` + text + `". Say help to hear what else I understand.`
}

type object map[string]any

// says is the body of an answer with one text, and events with it.
func says(text string, events ...object) func(order) any {
	return func(o order) any {
		content := object{"textMessage": object{"textPlain": text}}
		for _, e := range events {
			content["event"] = e
		}
		return message(o, content)
	}
}

// voiced is one whose text is to be spoken whatever the mode.
func voiced(text string) func(order) any {
	return func(o order) any { return message(o, object{"voiceMessage": text}) }
}

func custom(name string, value object) object {
	return object{"custom": object{"name": name, "value": value}}
}

func help() string {
	text := "I understand:"
	for _, p := range Phrases() {
		text += "\n" + p.Say + ": " + p.Does
	}
	return text
}

func message(o order, content object) object {
	return object{
		"conversation": object{"identifier": object{"id": o.ChannelID}},
		"from":         object{"identifier": object{"id": "demo-bot", "name": "Demo bot"}},
		"messages":     object{"timestamp": time.Now().UTC().Format(time.RFC3339Nano), "message": []object{{"content": content}}},
	}
}
