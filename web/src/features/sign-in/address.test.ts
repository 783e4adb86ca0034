import { expect, it } from "vitest";
import { localTarget, tokenIn } from "./address";

it("allows only addresses of this site", () => {
  expect(localTarget("/board?x=1#y")).toBe("/board?x=1#y");
  for (const wrong of [undefined, "", "board", "//evil.test", "/\\evil.test", "/\t/evil.test", "/\n\\evil.test"])
    expect(localTarget(wrong)).toBe("/");
  for (const wrong of ["https://evil.test", "javascript:alert(1)"]) expect(localTarget(wrong)).toBe("/");
});

it("finds the token in a link", () => {
  expect(tokenIn("#token=sy_abc")).toBe("sy_abc");
  expect(tokenIn("#token=a%20b")).toBe("a b");
  expect(tokenIn("#token=%")).toBe("%");
  for (const none of ["", "#", "#token=", "#x=1"]) expect(tokenIn(none)).toBeUndefined();
});
