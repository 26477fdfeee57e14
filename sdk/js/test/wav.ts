/** A WAV file with 16-bit mono samples. */
export function wav(seconds: number, sampleAt: (second: number) => number, rate = 48_000): Buffer {
  const file = Buffer.alloc(44 + 2 * rate * seconds);
  file.write("RIFF");
  file.writeUInt32LE(file.length - 8, 4);
  file.write("WAVEfmt ", 8);
  for (const [offset, value] of [[16, 16], [24, rate], [28, 2 * rate], [40, file.length - 44]] as const) file.writeUInt32LE(value, offset);
  for (const [offset, value] of [[20, 1], [22, 1], [32, 2], [34, 16]] as const) file.writeUInt16LE(value, offset);
  file.write("data", 36);
  for (let sample = 0; sample < rate * seconds; sample++) file.writeInt16LE(Math.round(32_767 * sampleAt(sample / rate)), 44 + 2 * sample);
  return file;
}

/** A sound like speech at a time in seconds: a low voice with harmonics and four syllables a second. */
export function syllables(second: number): number {
  const voice = [1, 2, 3, 5, 8].reduce((sum, harmonic) => sum + Math.sin(2 * Math.PI * 150 * harmonic * second) / harmonic, 0);
  return 0.3 * voice * Math.abs(Math.sin(2 * Math.PI * 2 * second));
}
