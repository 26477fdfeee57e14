/** Replaces a secret. */
const placeholder = "[redacted]";

const secretName = /(token|secret|password|passwd|passphrase|pwd|api[_-]?key|authorization|cookies?|credentials?|jwt|private_?key)$/i;
const numberName = /^(from|to|target|caller|callee|phone|msisdn|number|call_?id|channel_?id)$/i;
/** Number of digits of a phone number that stay visible: the default of MSISDN_UNMASKED_DIGITS. */
const visibleDigits = 4;

const secrets: [RegExp, string][] = [
  [/\b(cbt_)[\w-]{8,}/g, `$1${placeholder}`],
  [/\b(tk_[A-Za-z0-9]+_)[\w-]+/g, `$1${placeholder}`],
  [/\b(?:eyJ|eyA|ewo)[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?/g, placeholder],
  [/\b(bearer|basic)(\s+|%20)[^\s"'\\]{8,}/gi, `$1$2${placeholder}`],
  [/([?&][\w-]*(?:token|secret|password|api_?key)=)[^&\s"'\\]+/gi, `$1${placeholder}`],
  [/(:\/\/[^\s/?#@:"'<>]*:)[^\s/?#"'<>]*@/g, `$1${placeholder}@`],
  [/(a=ice-(?:pwd|ufrag):)[^\s"'\\]+/g, `$1${placeholder}`],
];

/** Returns a copy of a JSON value without credentials, and with masked phone numbers. */
export function redact(value: unknown, name = ""): unknown {
  if (typeof value === "string") return redactText(value, name);
  if (Array.isArray(value)) return value.map((item) => redact(item, name));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, redact(item, key)]));
}

function redactText(text: string, name: string): string {
  if (secretName.test(name) && text) return text.startsWith("$") ? text : placeholder; // $CALLBACK_TOKEN is a placeholder already
  if (numberName.test(name) && /^\d{7,15}$/.test(text)) return maskDigits(text);
  for (const [pattern, replacement] of secrets) text = text.replace(pattern, replacement);
  return text.replace(number, (found: string, prefix: string | undefined, digits: string) => (isPhone(!!prefix, digits) ? (prefix ?? "") + maskDigits(digits) : found));
}

/** A possible phone number: after a plus, tel: or sip:, or with several groups. */
const number = /(?<![\w.-])((?:(?:tel|sips?)(?::|%3A))?(?:\+|%2B)|(?:tel|sips?)(?::|%3A))?(\(?\d[\d\-./() ]*\d)(?![\w-])/gi;
/** IPv4 addresses, dates, times and versions. */
const notPhone = /^(?:\d{1,3}(?:\.\d{1,3}){3}$|(?:19|20)\d\d[-./]\d\d?[-./]\d|\d\d?[-./]\d\d?[-./](?:19|20)\d\d$|0\D|000)/;
/** An area code in parentheses, a trunk zero, or the usual groups. */
const formatted = /^(?:\(\d+\)|0\d|(?:1[-. ])?\d{3}[-. ]\d{3}[-. ]\d{4}$|\d{3}-\d{4}$|\d\d(?: \d\d){3,4}$|\d{3} \d{3} \d{3}$)/;

function isPhone(prefixed: boolean, text: string): boolean {
  const digits = text.replace(/\D/g, "").length;
  if (digits > 15) return false;
  return prefixed ? digits >= 3 : digits >= 7 && !notPhone.test(text) && formatted.test(text);
}

function maskDigits(text: string): string {
  let left = text.replace(/\D/g, "").length;
  return text.replace(/\d/g, (digit) => (left-- > visibleDigits ? "*" : digit));
}
