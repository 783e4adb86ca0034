import { Toaster } from "sonner";
import { useTheme } from "@/lib/theme";

export function Toasts() {
  const [theme] = useTheme();
  return <Toaster theme={theme} position="bottom-right" closeButton visibleToasts={4} />;
}
