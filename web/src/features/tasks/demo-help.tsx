import { Button } from "@/ui/button";

const VERBS: [string, string][] = [
  ["create PATH: CONTENT", "creates a file; put longer content in a fenced block below"],
  ["append PATH: TEXT", "appends to a file"],
  ["replace PATH: OLD -> NEW", "replaces text in a file"],
  ["delete PATH", "deletes a file"],
  ["run: COMMAND", "runs a shell command"],
  ["commit: MESSAGE", "commits the work so far"],
  ["ask: QUESTION", "asks a question; later lines can use {answer}"],
  ["permit: ACTION", "requests permission"],
  ["say: TEXT", "writes a message; think: TEXT writes a thought"],
  ["plan: FIRST; SECOND", "shows a plan and marks its steps as done"],
  ["sleep: SECONDS", "waits"],
  ["fix: INSTRUCTION", "runs when the verify command fails, for example fix: replace PATH: OLD -> NEW"],
  ["fail: REASON", "ends the turn as failed; also refuse, crash and hang"],
];

const EXAMPLE = `plan: Write it; Look at it; Commit
create HELLO.md: Hello from the demo agent.
run: cat HELLO.md
commit: docs: say hello`;

/** The instruction language of the demo agent. */
export function DemoHelp({ onExample }: { onExample: (text: string) => void }) {
  return (
    <details className="rounded-md border bg-sunken text-xs">
      <summary className="cursor-pointer px-2.5 py-1.5 font-medium text-soft">Demo agent instructions</summary>
      <div className="flex flex-col gap-2 border-t px-2.5 py-2">
        <p className="text-soft">
          The demo agent uses no model. It follows instructions, one per line, and ignores other text, quoted blocks and
          the output of the verify command.
        </p>
        <dl className="grid gap-x-3 gap-y-0.5 sm:grid-cols-[auto_1fr]">
          {VERBS.map(([verb, meaning]) => (
            <div key={verb} className="contents">
              <dt className="font-mono text-2xs leading-5">{verb}</dt>
              <dd className="text-soft">{meaning}</dd>
            </div>
          ))}
        </dl>
        <pre className="overflow-x-auto rounded border bg-surface p-2 font-mono text-2xs">{EXAMPLE}</pre>
        <Button size="sm" className="self-start" onClick={() => onExample(EXAMPLE)}>
          Use this example
        </Button>
      </div>
    </details>
  );
}
