import { useMe } from "@/api/queries/account";
import type { Project } from "@/api/types";
import { Checkbox, Field, Select } from "@/ui/field";
import { Fields, Form } from "@/ui/form";
import { ListInput } from "@/ui/inputs";
import { Section } from "@/ui/page";
import { useProjectForm } from "./project-form";

const PLATFORM = "platform";
const MODES = [
  { value: "none", label: "Nothing", detail: "No connection leaves the sandbox." },
  { value: "listed", label: "Listed hosts only", detail: "Only the selected presets and listed hosts." },
  { value: "all", label: "Everything", detail: "The whole internet." },
];
const PRESETS = [
  { value: "forge", label: "The project's forge" },
  { value: "debian", label: "Debian and Ubuntu packages" },
  { value: "pypi", label: "PyPI" },
  { value: "npm", label: "npm" },
  { value: "crates", label: "crates.io" },
  { value: "go", label: "Go modules" },
  { value: "maven", label: "Maven Central and Gradle" },
  { value: "rubygems", label: "RubyGems" },
] as const;

export function NetworkTab({ project }: { project: Project }) {
  const { settings, edit, form, errorAt } = useProjectForm(project);
  const { network } = settings;
  const platformMode = useMe().data?.defaultNetwork;
  const platformDefault = MODES.find((candidate) => candidate.value === platformMode);
  const toggle = (preset: (typeof network.presets)[number], on: boolean) =>
    edit("network", {
      presets: on ? [...network.presets, preset] : network.presets.filter((value) => value !== preset),
    });
  return (
    <Form {...form}>
      <Section
        title="Network"
        description="What sandboxes of this project may connect to. Models are reached through the platform and need no entry here. Agents from npm need the npm preset until they are installed."
      >
        <Fields>
          <Field
            label="Sandboxes may connect to"
            hint="Applies to running sandboxes immediately, and to paused ones when they resume."
            error={errorAt("network.mode")}
          >
            {(control) => (
              <Select
                {...control}
                value={network.mode ?? PLATFORM}
                onChange={(mode) => edit("network", { mode: mode === PLATFORM ? null : (mode as typeof network.mode) })}
                choices={[
                  {
                    value: PLATFORM,
                    label: platformDefault ? `Platform default: ${platformDefault.label}` : "Platform default",
                  },
                  ...MODES,
                ]}
              />
            )}
          </Field>
        </Fields>
        {network.mode === "listed" && (
          <Fields>
            <fieldset className="flex flex-col gap-1.5">
              <legend className="mb-1 text-[13px] font-medium">Presets</legend>
              {PRESETS.map(({ value, label }) => (
                <Checkbox
                  key={value}
                  checked={network.presets.includes(value)}
                  onChange={(on) => toggle(value, on)}
                  label={label}
                />
              ))}
            </fieldset>
            <Field
              label="Hosts"
              hint="One per line: a domain name, *.example.org for its subdomains, an IP address or a CIDR range."
              error={errorAt("network.allow")}
            >
              {(control) => (
                <ListInput
                  {...control}
                  mono
                  rows={8}
                  placeholder={"api.example.org\n*.example.net"}
                  value={network.allow}
                  onChange={(allow) => edit("network", { allow })}
                />
              )}
            </Field>
          </Fields>
        )}
      </Section>
    </Form>
  );
}
