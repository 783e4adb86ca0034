import { Monitor, Moon, Sun } from "lucide-react";
import { RadioGroup } from "radix-ui";
import { type ThemeChoice, useTheme } from "@/lib/theme";
import { Section } from "@/ui/page";

const CHOICES: { value: ThemeChoice; label: string; icon: typeof Sun }[] = [
  { value: "light", label: "Light", icon: Sun },
  { value: "dark", label: "Dark", icon: Moon },
  { value: "system", label: "System", icon: Monitor },
];

export function Appearance() {
  const [, choice, choose] = useTheme();
  return (
    <Section title="Appearance" description="Applies to this browser.">
      <RadioGroup.Root
        aria-label="Theme"
        value={choice}
        onValueChange={(value) => choose(value as ThemeChoice)}
        className="grid gap-3 p-4 sm:grid-cols-3"
      >
        {CHOICES.map(({ value, label, icon: Icon }) => (
          <RadioGroup.Item
            key={value}
            value={value}
            className="flex items-center gap-2.5 rounded-md border border-line-strong bg-surface px-3 py-2.5 text-left text-[13px] hover:bg-hover data-[state=checked]:border-accent data-[state=checked]:bg-accent-soft"
          >
            <Icon className="size-4 text-soft" aria-hidden /> {label}
          </RadioGroup.Item>
        ))}
      </RadioGroup.Root>
    </Section>
  );
}
