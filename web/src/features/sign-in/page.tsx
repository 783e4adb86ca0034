import { useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { ApiError } from "@/api/client";
import { getLoginKey } from "@/api/login-key";
import { useReadMe, useSignIn } from "@/api/queries/account";
import { useStored } from "@/lib/stored";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { useTitle } from "@/ui/page";
import { errorMessage } from "@/ui/states";
import { localTarget, tokenIn } from "./address";

const REJECTED = {
  token:
    "Invalid token. Check that you copied all of it. If the administrator's token is lost, restart the server with SANDYARD_NEW_ADMIN_TOKEN=true to create another one.",
  password: "Wrong name or password. An administrator can set a new password for you.",
};

/**
 * The sign-in page. `#token=` (as printed by `sandyard up`) is removed from the address immediately. It signs in automatically only if
 * nobody has signed in here since the last sign-out: otherwise a link on any page could silently switch the user to another account. A
 * rejected cookie does not mean that nobody is signed in, because programs on other ports of this host can overwrite it. Without such a
 * link, the method that was last used in this browser is offered first.
 */
export function SignInPage() {
  useTitle("Sign in");
  const readMe = useReadMe();
  const navigate = useNavigate();
  const { next } = useSearch({ from: "/sign-in" });
  const [lastMethod, setLastMethod] = useStored<"token" | "password">("sign-in", "password");
  const [method, setMethod] = useState(lastMethod);
  const [token, setToken] = useState("");
  const [warning, setWarning] = useState<string>();
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const signIn = useSignIn({
    onSuccess: (_, credentials) => {
      setLastMethod("token" in credentials ? "token" : "password");
      void navigate({ href: localTarget(next) });
    },
  });
  const { mutate } = signIn;
  const tried = useRef(false);
  useEffect(() => {
    const linkToken = tokenIn(location.hash);
    if (!linkToken || tried.current) return;
    tried.current = true;
    history.replaceState(history.state, "", location.pathname + location.search);
    setMethod("token");
    setToken(linkToken);
    readMe().then(
      ({ user }) => setWarning(`You are signed in as ${user.name}.`),
      (error: unknown) => {
        if (!(error instanceof ApiError && error.status === 401)) setWarning(errorMessage(error));
        else if (getLoginKey() !== null) setWarning("Your login has expired.");
        else mutate({ token: linkToken });
      },
    );
  }, [readMe, mutate]);

  const submit = (event: FormEvent) => {
    event.preventDefault();
    mutate(method === "token" ? { token: token.trim() } : { name, password });
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
        {method === "token" ? (
          <Field
            label="Token"
            hint={
              <>
                The token that <code className="font-mono">sandyard up</code> printed on its first start, or one of your
                API tokens.
              </>
            }
          >
            {(control) => (
              <Input
                {...control}
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
              {(control) => (
                <Input
                  {...control}
                  autoComplete="username"
                  required
                  value={name}
                  onChange={(e) => setName(e.target.value)}
                />
              )}
            </Field>
            <Field label="Password">
              {(control) => (
                <Input
                  {...control}
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
          {warning !== undefined && (
            <p className="rounded-md bg-warn-soft px-3 py-2 text-[13px]">
              {warning} Sign in with this token only if you trust the link that brought you here.
            </p>
          )}
          {signIn.error && (
            <p role="alert" className="rounded-md bg-bad-soft px-3 py-2 text-[13px] text-bad">
              {signIn.error instanceof ApiError && signIn.error.status === 401
                ? REJECTED[method]
                : errorMessage(signIn.error)}
            </p>
          )}
        </div>
        <Button look="primary" type="submit" busy={signIn.isPending}>
          Sign in
        </Button>
        <button
          type="button"
          className="text-xs text-accent underline underline-offset-2"
          onClick={() => {
            signIn.reset();
            setMethod(method === "token" ? "password" : "token");
          }}
        >
          {method === "token" ? "Sign in with name and password instead" : "Sign in with a token instead"}
        </button>
      </form>
    </main>
  );
}
