import { expect, test } from "vitest";
import { parseAddress } from "./address";

test.each([
  ["", "/", ""],
  ["/", "/", ""],
  ["settings", "/settings", ""],
  [" /a b?q=é ", "/a%20b?q=%C3%A9", ""],
  ["/app#/users/1", "/app", "#/users/1"],
  ["http://localhost:3000/docs?page=2", "/docs?page=2", ""],
  ["//elsewhere.example/x", "/elsewhere.example/x", ""],
  ["http://", "/", ""],
])("%j is %s%s", (text, path, hash) => {
  expect(parseAddress(text)).toEqual({ path, hash });
});
