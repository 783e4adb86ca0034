import { Button } from "@/ui/button";

const VERBS: [string, string][] = [
  ["create PATH: CONTENT", "a new file; longer content in a fenced block below it"],
  ["append PATH: TEXT", "at the end of a file"],
  ["replace PATH: OLD -> NEW", "in a file"],
  ["delete PATH", "a file"],
  ["run: COMMAND", "in a shell"],
  ["commit: MESSAGE", "what was done so far"],
  ["ask: QUESTION", "a person; later lines may say {answer}"],
  ["permit: ACTION", "asks whether it may"],
  ["say: TEXT", "in the conversation; think: TEXT as a thought"],
  ["plan: FIRST; SECOND", "steps that are ticked off"],
  ["sleep: SECONDS", "does nothing for so long"],
  ["fix: INSTRUCTION", "followed when the project's check fails, for example fix: replace PATH: OLD -> NEW"],
  ["fail: REASON", "ends the turn as failed; also refuse, crash and hang"],
];

const EXAMPLE = `plan: Write it; Look at it; Commit
create HELLO.md: Hello from the yard.
run: cat HELLO.md
commit: docs: say hello`;

/** The language of the agent without a model. */
export function DemoHelp({ onExample }: { onExample: (text: string) => void }) {
  return (
    <details className="rounded-md border bg-sunken text-xs">
      <summary className="cursor-pointer px-2.5 py-1.5 font-medium text-soft">What the demo agent understands</summary>
      <div className="flex flex-col gap-2 border-t px-2.5 py-2">
        <p className="text-soft">
          It has no model. It follows instructions, one a line; other text, quoted blocks and the output of checks are
          left alone.
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
