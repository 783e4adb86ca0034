import { Component, type ReactNode } from "react";
import { ErrorState } from "@/ui/states";

/** Keep a panel that failed to load or render from breaking the page. Give it a key, so that another panel starts without the error. */
export class Boundary extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown): { error: unknown } {
    return { error };
  }

  override render(): ReactNode {
    // a chunk that failed to load is not requested again before a reload
    return this.state.error === null ? (
      this.props.children
    ) : (
      <ErrorState error={this.state.error} retry={() => location.reload()} />
    );
  }
}
