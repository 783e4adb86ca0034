import { beforeEach, describe, expect, it, vi } from "vitest";

const stubs = vi.hoisted(() => {
  const stored = new Map<string, string>();
  const fetch = vi.fn<(request: Request) => Promise<Response>>();
  const localStorage = {
    getItem: (name: string) => stored.get(name) ?? null,
    setItem: (name: string, value: string) => void stored.set(name, value),
    removeItem: (name: string) => void stored.delete(name),
  };
  vi.stubGlobal("location", { origin: "http://127.0.0.1:8700" });
  vi.stubGlobal("localStorage", localStorage);
  vi.stubGlobal("fetch", fetch);
  return { stored, fetch, localStorage };
});

import { api, fetchRaw, onSignedOut } from "./client";
import { getLoginKey, setLoginKey } from "./login-key";
import { uploadFile } from "./queries/files";
import { addTicket } from "./queries/tickets";

const respond =
  (body: unknown, status = 200) =>
  async () =>
    Response.json(body, { status });
const sentKeys = () => stubs.fetch.mock.calls.map(([request]) => request.headers.get("X-Sandyard-CSRF"));

/** An upload whose response has this status. */
class Upload {
  static status = 200;
  static headers: Record<string, string>;
  readonly upload = {};
  readonly responseText = "{}";
  status = 0;
  onload = () => undefined;
  open() {
    Upload.headers = {};
  }
  setRequestHeader(name: string, value: string) {
    Upload.headers[name] = value;
  }
  send() {
    this.status = Upload.status;
    this.onload();
  }
}
vi.stubGlobal("XMLHttpRequest", Upload);
const upload = () => uploadFile("sbx_1", "/a", {} as File, () => undefined, new AbortController().signal);

beforeEach(() => {
  stubs.stored.clear();
  stubs.fetch.mockReset().mockImplementation(respond({ ticket: "one&only" }));
});

describe("the key of the login", () => {
  it("is sent with every request: reading, changing, streams and uploads", async () => {
    setLoginKey("first");
    await api.GET("/api/v1/me");
    await api.POST("/api/v1/logout");
    await fetchRaw("/api/v1/events", { headers: { "Last-Event-ID": "7" } });
    expect(sentKeys()).toEqual(["first", "first", "first"]);
    expect(stubs.fetch.mock.calls[2]?.[0].headers.get("Last-Event-ID")).toBe("7");
    await upload();
    expect(Upload.headers["X-Sandyard-CSRF"]).toBe("first");
  });

  it("is the current one, also if another tab has signed in", async () => {
    setLoginKey("first");
    stubs.stored.set("sandyard.key", "second");
    await api.GET("/api/v1/me");
    setLoginKey(null);
    await api.GET("/api/v1/me");
    expect(sentKeys()).toEqual(["second", null]);
    expect(stubs.stored.size).toBe(0);
  });

  it("is kept by the page if local storage is forbidden", () => {
    const forbid = () => {
      throw new DOMException("forbidden", "SecurityError");
    };
    vi.stubGlobal("localStorage", { getItem: forbid, setItem: forbid, removeItem: forbid });
    expect(getLoginKey()).toBeNull();
    setLoginKey("first");
    expect(getLoginKey()).toBe("first");
    vi.stubGlobal("localStorage", stubs.localStorage);
    setLoginKey(null);
    expect(getLoginKey()).toBeNull();
  });
});

it("reports every rejected login, also of an upload, and keeps the key: only signing out removes it", async () => {
  setLoginKey("first");
  const listener = vi.fn();
  onSignedOut(listener);
  stubs.fetch.mockImplementation(respond({ detail: "Sign in.", code: "unauthenticated" }, 401));
  await expect(api.GET("/api/v1/me")).rejects.toMatchObject({ status: 401, message: "Sign in." });
  Upload.status = 401;
  await expect(upload()).rejects.toMatchObject({ status: 401 });
  expect(listener).toHaveBeenCalledTimes(2);
  expect(getLoginKey()).toBe("first");
});

it("adds a ticket to a URL", async () => {
  expect(await addTicket("/api/v1/files?path=%2Fa%20b")).toBe("/api/v1/files?path=%2Fa+b&ticket=one%26only");
});
