export { playAudio } from "./voice/speaker.js";
export type { Speaker } from "./voice/speaker.js";
export type { WorkletOptions } from "./voice/context.js";
export { openMicrophone, sendMicrophone } from "./voice/microphone.js";
export type { Microphone, MicrophoneOptions } from "./voice/microphone.js";
export { callWebRtc } from "./voice/webrtc.js";
export type { WebRtcCall, WebRtcOptions } from "./voice/webrtc.js";
