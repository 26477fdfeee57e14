package demo

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
)

// answerPart identifies a part of a streamed answer, so that the page shows all parts as
// one message. It is zero for whole answers.
type answerPart struct {
	WorkItemID string `json:"workItemId,omitzero"`
	Part       int    `json:"part,omitzero"` // from 1 on
	// Unfinished is the start of the sentence after this part. The next part replaces it.
	Unfinished string `json:"unfinished,omitzero"`
}

// openAnswer is the streamed answer whose parts arrive.
type openAnswer struct {
	itemID string            // its work item; empty: none
	words  callback.Splitter // of an answer that arrives word by word
	newest answerPart        // that was sent to the page
}

// answerEnd is the event with which the page learns that a streamed answer has no more
// parts.
const answerEnd = "answer_end"

// sayAnswer says an answer of the bot, or a part of one that streams: a sentence, or words.
// Parts that arrive after the caller has interrupted the answer are dropped.
func (c *call) sayAnswer(e wire.Entry) {
	i := item{speechRequest: speechRequest{Text: e.Text, DisableCache: e.DisableTTSCache}, voice: e.Form == wire.FormVoice}
	if e.Part > 0 {
		if e.WorkItemID == c.cancelled {
			return
		}
		c.stream.itemID = e.WorkItemID
		if arrivesByWord(e) {
			c.sayWords(c.stream.words.Add(e.Text))
			return
		}
		i.answer = c.nextPart("")
	}
	c.say(i)
}

// arrivesByWord returns whether an entry is a part that need not end with a sentence: its provider has
// asked for that with split=none.
func arrivesByWord(e wire.Entry) bool {
	return e.Kind == wire.KindBotMessage && e.Part > 0 && e.Form == wire.FormPlain
}

// sayWords says the sentences that are complete, and shows the words after them at once.
func (c *call) sayWords(sentences []string) {
	rest := c.stream.words.Rest()
	if len(sentences) > 0 || !c.isSpoken(item{}) { // else comfort prompts go on: there is nothing to play yet
		c.removePending(c.stream.itemID)
	}
	c.sentences += len(sentences)
	for n, text := range sentences {
		unfinished := ""
		if n == len(sentences)-1 {
			unfinished = rest
		}
		c.say(item{speechRequest: speechRequest{Text: text}, answer: c.nextPart(unfinished)})
	}
	if len(sentences) == 0 && rest != c.stream.newest.Unfinished {
		c.say(item{answer: c.nextPart(rest)})
	}
}

func (c *call) nextPart(unfinished string) answerPart {
	c.stream.newest = answerPart{c.stream.itemID, c.stream.newest.Part + 1, unfinished}
	return c.stream.newest
}

// endStreamAt ends the streamed answer if an entry is its last one. The first entry after
// the parts completes the last sentence.
func (c *call) endStreamAt(e wire.Entry) {
	if c.stream.itemID == "" || e.WorkItemID != c.stream.itemID || e.Part > 0 {
		return
	}
	if rest := c.stream.words.End(); len(rest) > 0 {
		c.sayWords(rest)
	}
	if e.Parts > 0 || e.Kind == wire.KindProviderError || e.Kind == wire.KindTimeout {
		c.endStream()
	}
}

func (c *call) endStream() {
	id, _ := json.Marshal(c.stream.itemID) // a string can always be encoded
	c.effects.send(wire.TypeStatus, status{answerEnd, jsontext.Value(id)})
	c.stream = openAnswer{}
}

// cancelStream cancels the answer that the caller interrupts, so that its provider can
// stop the model. In chat mode, callers can write while the bot does.
func (c *call) cancelStream() {
	if c.stream.itemID == "" || c.mode == "chat" {
		return
	}
	c.effects.cancel(c.stream.itemID)
	c.removePending(c.stream.itemID)
	c.cancelled = c.stream.itemID
	c.endStream()
}
