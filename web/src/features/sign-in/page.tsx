import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { ApiError, api, got } from "@/api/client";
import { me } from "@/api/queries";
import { useTitle } from "@/shell/page";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { words } from "@/ui/states";
import { inside, tokenIn } from "./address";

type Shown = { token: string } | { name: string; password: string };

const WRONG = {
  token:
    "Invalid token. Check that you copied all of it. Starting the server with SANDYARD_NEW_ADMIN_TOKEN=true creates a new one.",
  password: "Wrong name or password. An administrator can set a new password for you.",
};

/**
 * The sign-in page. `#token=` (as printed by `sandyard up`) is removed from the address immediately. It signs in automatically only if
 * nobody is signed in: otherwise a link on any page could silently switch the user to another account.
 */
export function SignInPage() {
  useTitle("Sign in");
  const client = useQueryClient();
  const navigate = useNavigate();
  const { next } = useSearch({ from: "/sign-in" });
  const [by, setBy] = useState<"token" | "password">("token");
  const [token, setToken] = useState("");
  const [known, setKnown] = useState<string>();
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const login = useMutation({
    mutationFn: (shown: Shown) => got(api.POST("/api/v1/login", { body: shown })),
    onSuccess: async () => {
      client.clear();
      await client.fetchQuery(me);
      await navigate({ href: inside(next) });
    },
  });
  const { mutate } = login;
  const tried = useRef(false);
  useEffect(() => {
    const given = tokenIn(location.hash);
    if (!given || tried.current) return;
    tried.current = true;
    history.replaceState(history.state, "", location.pathname + location.search);
    setToken(given);
    client.fetchQuery(me).then(
      ({ user }) => setKnown(user.name),
      () => mutate({ token: given }),
    );
  }, [client, mutate]);

  const submit = (event: FormEvent) => {
    event.preventDefault();
    mutate(by === "token" ? { token: token.trim() } : { name, password });
  };
  return (
    <main className="grid min-h-full place-items-center p-4">
      <form
        onSubmit={submit}
        className="flex w-full max-w-sm flex-col gap-4 rounded-xl border bg-surface p-6 shadow-float"
      >
        <div className="flex items-center gap-3">
          <img src="/favicon.svg" alt="" className="size-9" />
          <div>
            <h1 className="text-lg font-semibold">Sandyard</h1>
            <p className="text-xs text-soft">Every coding agent gets its own computer.</p>
          </div>
        </div>
        {by === "token" ? (
          <Field
            label="Token"
            hint={
              <>
                The token that <code className="font-mono">sandyard up</code> printed on its first start, or one of your
                API tokens.
              </>
            }
          >
            {(wear) => (
              <Input
                {...wear}
                type="password"
                autoComplete="current-password"
                required
                value={token}
                onChange={(e) => setToken(e.target.value)}
                placeholder="sy_…"
              />
            )}
          </Field>
        ) : (
          <>
            <Field label="Name">
              {(wear) => (
                <Input
                  {...wear}
                  autoComplete="username"
                  required
                  value={name}
                  onChange={(e) => setName(e.target.value)}
                />
              )}
            </Field>
            <Field label="Password">
              {(wear) => (
                <Input
                  {...wear}
                  type="password"
                  autoComplete="current-password"
                  required
                  value={password}
                  onChange={(e) => setPassword(e.target.value)}
                />
              )}
            </Field>
          </>
        )}
        <div aria-live="polite">
          {known !== undefined && (
            <p className="rounded-md bg-warn-soft px-3 py-2 text-[13px]">
              You are signed in as {known}. Sign in again only if you trust the link that brought you here.
            </p>
          )}
          {login.error && (
            <p role="alert" className="rounded-md bg-bad-soft px-3 py-2 text-[13px] text-bad">
              {login.error instanceof ApiError && login.error.status === 401 ? WRONG[by] : words(login.error)}
            </p>
          )}
        </div>
        <Button look="primary" type="submit" busy={login.isPending}>
          Sign in
        </Button>
        <button
          type="button"
          className="text-xs text-accent underline underline-offset-2"
          onClick={() => {
            login.reset();
            setBy(by === "token" ? "password" : "token");
          }}
        >
          {by === "token" ? "Sign in with name and password instead" : "Sign in with a token instead"}
        </button>
      </form>
    </main>
  );
}
