import { describe, expect, it } from "vitest";
import { extensionOf, foldersBetween, imageType, isWithin, join, listCrumbs, nameOf, parentOf, textOf } from "./paths";

describe("paths", () => {
  it("have names, parents and endings", () => {
    expect([nameOf("/a/b.py"), nameOf("/a/"), nameOf("/")]).toEqual(["b.py", "a", "/"]);
    expect([parentOf("/a/b"), parentOf("/a"), parentOf("/")]).toEqual(["/a", "/", "/"]);
    expect([extensionOf("/a/b.PY"), extensionOf("/a.b/c")]).toEqual(["py", ""]);
  });
  it("are normalised when joined", () => {
    expect(join("/home/user", "src/new.py")).toBe("/home/user/src/new.py");
    expect(join("/home/user", "/etc/x")).toBe("/etc/x");
    expect(join("/home/user", "../../../x")).toBe("/x");
    expect([join("/a", ""), join("/a", "b/"), join("/a", "x\0"), join("/a", "..")]).toEqual([null, null, null, null]);
  });
  it("know the folders they are in", () => {
    expect([isWithin("/a/b", "/a"), isWithin("/ab", "/a"), isWithin("/x", "/"), isWithin("/a", "/a")]).toEqual([
      true,
      false,
      true,
      true,
    ]);
    expect(listCrumbs("/a/b").map((crumb) => crumb.path)).toEqual(["/", "/a", "/a/b"]);
    expect(foldersBetween("/a", "/a/b/c/d.py")).toEqual(["/a/b/c", "/a/b"]);
    expect(foldersBetween("/", "/x/y")).toEqual(["/x"]);
  });
});

describe("file types", () => {
  it("shows only images that cannot contain scripts", () =>
    expect([imageType("a.PNG"), imageType("a.svg"), imageType("a.html")]).toEqual(["image/png", undefined, undefined]));
  it("keeps the byte order mark of text", () =>
    expect(textOf(new TextEncoder().encode("\ufeffä\r\n"))).toBe("\ufeffä\r\n"));
  it("treats NULs and invalid UTF-8 as binary", () => {
    expect(textOf(new Uint8Array([1, 0, 2]))).toBeNull();
    expect(textOf(new Uint8Array([0xff, 0xfe, 0x41]))).toBeNull();
  });
});
