// Drawing by python/kvasir/plots.py.
#ifndef KVASIR_APPS_PLOT_H_
#define KVASIR_APPS_PLOT_H_

#include <string>

namespace kvasir::cli {

// Error(kInvalidArgument) if the file's name ends in neither .png nor .svg; Error(kIo) if nothing could be
// drawn: KVASIR_PYTHON (else python3) cannot be run, or lacks what it needs. For use before a long
// measurement.
void check_plot(const std::string& file);

// Draws one JSON document into the file. Error(kIo) with the last line that Python wrote.
void draw_plot(const std::string& json, const std::string& file);

}  // namespace kvasir::cli

#endif  // KVASIR_APPS_PLOT_H_
