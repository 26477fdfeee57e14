import { expect, test } from "vitest";
import { checkJson, lineAndColumn } from "../src/json-check.js";

/** The problems of a text, with line and column. */
const problems = (text: string) => checkJson(text).problems.map(({ at, message }) => `${Object.values(lineAndColumn(text, at)).join(":")} ${message}`);

test("a valid text has no problems, and each value has a position", () => {
  const text = '{"a": [1, {"b/~": null}],\n "c": "\\u00e4\\"", "d": -1.5e3}';
  expect(problems(text)).toEqual([]);
  expect([...checkJson(text).positions]).toEqual([["", 0], ["/a", 6], ["/a/0", 7], ["/a/1", 10], ["/a/1/b~1~0", 18], ["/c", text.indexOf('"\\u')], ["/d", text.indexOf("-1")]]);
});

test("all mistakes are found at once, with line and column", () => {
  expect(problems("{\n  \"a\": tru,\n  'b': 1,\n  \"c\" 2,\n  \"d\": 1\n  \"e\": [1, 2,],\n}")).toEqual([
    '2:8 expected a value, not "tru"',
    '3:3 expected a name in double quotes, not "\'"',
    '4:7 expected ":" before "2"',
    '6:3 expected "," or "}" before "\\""',
    '6:14 unexpected "]" after the comma',
    '7:1 unexpected "}" after the comma',
  ]);
  expect(problems('{"a": "b\n}')).toEqual(['1:7 expected the closing " of the text']);
  expect(problems("[1")).toEqual(['1:3 expected "]" before the end of the text']);
  expect(problems("{} x")).toEqual(['1:4 unexpected "x" after the end']);
});

// JSON.parse decides, whatever the text is made of.
test("a text has problems if and only if it is not JSON", () => {
  const parts = ["{", "}", "[", "]", ",", ":", '"a"', '"', "1", "01", "-", "true", "nul", " ", "\n", "\\", "'", "1.5e3", "\u0001", '"\\u12"'];
  const wrong: string[] = [];
  let seed = 1;
  const random = (limit: number) => (seed = (seed * 48_271) % 2_147_483_647) % limit;
  for (let n = 0; n < 50_000; n++) {
    const text = Array.from({ length: random(8) }, () => parts[random(parts.length)]).join("");
    let valid = true;
    try {
      JSON.parse(text);
    } catch {
      valid = false;
    }
    if ((checkJson(text).problems.length === 0) !== valid) wrong.push(text);
  }
  expect(wrong).toEqual([]);
});
