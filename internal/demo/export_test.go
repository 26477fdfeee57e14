package demo

// For tests with package harness, which imports this one.
var AnswerOffer = answerOffer

type PeerOptions = peerOptions
