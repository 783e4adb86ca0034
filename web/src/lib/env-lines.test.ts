import { expect, it } from "vitest";
import { formatEnv, formatLine, parseEnv, parseLine } from "./env-lines";

it("parses what it formats, and reports invalid lines", () => {
  const envs = { OPENAI_BASE_URL: "{base_url}/v1", EMPTY: "", EQUAL: "a=b", LONG: "one\ntwo ", QUOTED: '"q"' };
  expect(parseEnv(formatEnv(envs))).toEqual(envs);
  expect(parseEnv(["A=1", "1A=2"])).toContain("1A=2");
  expect(parseEnv(["nothing"])).toContain("nothing");
});

it("keeps every argument of a command line", () => {
  for (const word of ["plain", "", " ends ", "echo 1\necho 2", '"', '"half', "C:\\n"]) {
    expect(formatLine(word)).not.toMatch(/\n/);
    expect(parseLine(formatLine(word))).toBe(word);
  }
});
